#!/bin/sh
# gcc with AddressSanitizer and UndefinedBehaviorSanitizer, for `make sanitize`. It is not sanitized itself, and what
# comes last counts: at -O3 these checks take minutes to compile.
unset LD_PRELOAD
exec gcc "$@" -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
