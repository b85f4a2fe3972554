# From `kopsd --print-config` to the settings of kopsd.conf.5: sections, keys, what they mean, their defaults.

# Found at start, or said in words: the value of the machine that builds says nothing.
function is_shown(name) {
    return name !~ /^(server\.spin_us|kernels\.helpers|server\.socket|cache\.directory)$/
}

/^\[/ {
    if (section != "")
        print ".El"
    section = substr($0, 2, length($0) - 2)
    print ".Ss " section
    print ".Bl -tag -width Ds"
    next
}
/^; / {
    doc = doc (doc == "" ? "" : " ") substr($0, 3)
    next
}
/^;?[a-z_0-9]+ =/ {
    key = $1
    sub(/^;/, "", key)
    value = $0
    sub(/^[^=]*= */, "", value)
    print ".It Ic " key (value != "" && is_shown(section "." key) ? " No = " plain(value) : "")
    prose(doc)
    doc = ""
}
END {
    print ".El"
}
