# Shared by the pages' scripts: text as mdoc's input.

# Text that mdoc must not take for an escape, in ASCII.
function plain(text) {
    gsub(/\\/, "\\e", text)
    gsub(/…/, "...", text)
    return text
}

# A sentence starts a line, and no line is long, as manual pages are written.
function prose(text,    words, n, i, line) {
    n = split(plain(text), words, " ")
    for (i = 1; i <= n; i++) {
        if (line != "" && (length(line) + length(words[i]) > 76 || line ~ /[.]$/ && words[i] ~ /^[A-Z]/)) {
            print line
            line = ""
        }
        if (line == "" && words[i] ~ /^[.']/)
            words[i] = "\\&" words[i]
        line = line (line == "" ? "" : " ") words[i]
    }
    if (line != "")
        print line
}
