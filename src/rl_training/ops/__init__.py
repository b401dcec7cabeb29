"""Pure functions of arrays and tensors: no modules, no state, no input or output."""
