# From the --help of a program or command to mdoc. With -v only=options, what is between its options is left out.

function end_paragraph() {
    if (paragraph != "" && only != "options") {
        print ".Pp"
        prose(paragraph)
    }
    paragraph = ""
}
function end_option() {
    if (option != "") {
        if (!in_list)
            print ".Bl -tag -width Ds"
        in_list = 1
        gsub(/-/, "\\-", option)
        print ".It " option
        prose(meaning)
    }
    option = meaning = ""
}
function end_list() {
    end_option()
    if (in_list)
        print ".El"
    in_list = 0
}

{ sub(/ +$/, "") }
/^Usage:|^usage:/ {
    in_usage = 1
}
in_usage && !/^(Usage|usage|   )/ {
    if (only != "options" && usage != "")
        printf ".Bd -literal\n%s.Ed\n", usage
    in_usage = 0
}
in_usage {
    line = $0
    sub(/^([Uu]sage: |       )/, "", line)
    usage = usage plain(line) "\n"
    next
}
# An option and, behind two blanks or on the next line, its meaning.
/^ +-/ {
    end_paragraph()
    end_option()
    option = $0
    sub(/^ +/, "", option)
    if (match(option, /  +/)) {
        meaning = substr(option, RSTART + RLENGTH)
        option = substr(option, 1, RSTART - 1)
    }
    next
}
/^      / && option != "" {
    sub(/^ +/, "")
    meaning = meaning " " $0
    next
}
/^$/ {
    end_paragraph()
    next
}
{
    end_list()
    sub(/^ +/, "")
    paragraph = paragraph " " $0
}
END {
    if (in_usage && only != "options")
        printf ".Bd -literal\n%s.Ed\n", usage
    end_list()
    end_paragraph()
}
