"""What every other folder of the package uses: errors, declarations, names, and whether the compiled part is there. No I/O."""
