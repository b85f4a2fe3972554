# For scripts that run several steps and count: step NAME COMMAND…, and the_end as the last command.
#
# Every step runs even when one before it failed. A step that ends with a line `N passed, N failed` counts as that many
# tests, every other one as one. One that ends with status 77 could not run, and has said why. The last line sums them up.
log=$(mktemp)
trap 'rm -f "$log"' EXIT

passed=0 failed=0 status_of_step=0
failures=()

# What the step said of its failed tests, or its last lines: the end of the log is all that some readers get.
tell_failure() {
    if grep -q '^failed test: ' "$log"; then
        awk '/^failed test: / { inside = 1; print; next } /^    / && inside { print; next } { inside = 0 }' "$log" |
            head -n 300
    else
        tail -n 40 "$log"
    fi
}

# step NAME COMMAND…
step() {
    local name=$1 status start=$SECONDS counts
    shift
    printf '\n=== %s: %s\n' "$name" "$*"
    "$@" 2>&1 | tee "$log"
    status=$?
    status_of_step=$status
    if ((status == 77)); then
        printf '=== %s: %s\n' "$name" "$(grep . "$log" | tail -n 1)"
        return
    fi
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    if [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
        ((passed += BASH_REMATCH[1], failed += BASH_REMATCH[2]))
        if ((status != 0 && BASH_REMATCH[2] == 0)); then ((failed += 1)); fi
    elif ((status == 0)); then
        ((passed += 1))
    else
        ((failed += 1))
    fi
    if ((status != 0)); then
        failures+=("failed: $name (status $status)" "$(tell_failure)")
    fi
    printf '=== %s: %s after %d s\n' "$name" "$([[ $status == 0 ]] && echo passed || echo FAILED)" $((SECONDS - start))
}

the_end() {
    local failure
    printf '\n%d s\n' "$SECONDS"
    for failure in ${failures[@]+"${failures[@]}"}; do
        printf '%s\n' "$failure"
    done
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0 && passed > 0))
}
