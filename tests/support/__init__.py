"""What tests of several folders share: cases, models, recorders, and the scripts that some of them start."""
