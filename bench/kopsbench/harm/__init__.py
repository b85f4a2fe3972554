"""Users whose kernels do harm, and clients that work beside them."""
