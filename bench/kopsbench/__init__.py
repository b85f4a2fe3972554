"""Side-by-side benchmarks of kopsd. `bench/run --help` says how to run them; README.md beside it says what they mean."""
