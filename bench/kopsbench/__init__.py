"""Side-by-side benchmarks of kopsd. `bench/run --help` says how to run them."""
