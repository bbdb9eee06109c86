"""Make calibrations for a model."""
