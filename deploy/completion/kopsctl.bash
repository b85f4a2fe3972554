# bash completion of kopsctl. As /usr/share/bash-completion/completions/kopsctl, or sourced.

_kopsctl() {
    local commands="ping info ops stats clients top trace report metrics drain run tune tuning compile launch check judge cache help"
    local common="--help --json --socket --timeout"
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command="" i at=0 socket=()
    COMPREPLY=()

    # `--option=value` comes as three words.
    if [[ $cur == = ]]; then
        cur=""
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi

    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            --socket | --timeout)
                [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))
                [[ ${COMP_WORDS[i]} == --timeout || ${COMP_WORDS[i - 1]} == --timeout ]] || socket=(--socket "${COMP_WORDS[i + 1]}")
                ((i++))
                ;;
            -*) ;;
            *)
                if [[ -z $command ]]; then
                    command=${COMP_WORDS[i]}
                    at=$i
                fi
                ;;
        esac
    done

    _kopsctl_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
    _kopsctl_files() {
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        compopt -o filenames 2>/dev/null
    }
    # What the daemon has; nothing where none answers.
    _kopsctl_ops() { _kopsctl_words "$(kopsctl --timeout 1 "${socket[@]}" ops 2>/dev/null | awk 'NR > 1 { print $1 }')"; }

    case $command:$prev in
        *:--socket | metrics:--textfile | trace:--output | trace:-o | report:--output | report:-o | report:--peaks | compile:--include-file | compile:-i | launch:--include-file | launch:-i | launch:--save | judge:--page | judge:--kept | judge:--board)
            _kopsctl_files
            return
            ;;
        *:--timeout) return ;;
        stats:--op | report:--op) _kopsctl_ops && return ;;
        stats:--dtype | run:--dtype | run:-t | tune:--dtype | tune:-t) _kopsctl_words "f32 f64 f16 bf16" && return ;;
        stats:--sort)
            _kopsctl_words "op shapes dtype variant device user calls errors total share mean p50 p99 gb_s gflop_s queue_p99 total_p99" && return
            ;;
        stats:--by) _kopsctl_words "op shapes dtype variant device user" && return ;;
        run:--memory | run:-m | launch:--memory | launch:-m) _kopsctl_words "shared device" && return ;;
        run:--cache | launch:--cache) _kopsctl_words "cold warm" && return ;;
        top:--sort) _kopsctl_words "rate device memory p99 inflight pid" && return ;;
        metrics:--listen) _kopsctl_words "127.0.0.1:9464" && return ;;
        # Numbers, names and expressions, which nobody can guess.
        ping:--count | ping:-c | ping:--spin | stats:--device | report:--device | stats:--limit | top:--iterations | top:-n | top:--delay | top:-d | metrics:--interval) return ;;
        trace:--seconds | trace:-s | trace:--events) return ;;
        run:--shape | run:-s | run:--device | run:-d | run:--repeat | run:-n | run:--warmup | run:-w | run:--variant | run:-v) return ;;
        tune:--shape | tune:-s | tune:--device | tune:-d | tune:--attr | tune:-a | tune:--out-shape) return ;;
        run:--attr | run:-a | run:--seed | run:--out-shape | cache:--key) return ;;
        compile:--entry | compile:-e | compile:--option | compile:-o | compile:--arch | compile:-a | compile:--device | compile:-d) return ;;
        launch:--param | launch:-p | launch:--grid | launch:-g | launch:--block | launch:-b | launch:--cluster | launch:--shared) return ;;
        launch:--option | launch:-o | launch:--arch | launch:-a | launch:--device | launch:-d | launch:--repeat | launch:-n) return ;;
        judge:--device | judge:--deadline) return ;;
        launch:--warmup | launch:-w | launch:--show | launch:--seed) return ;;
    esac

    if [[ $cur == -* ]]; then
        case $command in
            "") _kopsctl_words "$common --version" ;;
            ping) _kopsctl_words "$common --count --spin" ;;
            info | ops | help) _kopsctl_words "$common" ;;
            stats) _kopsctl_words "$common --op --dtype --device --sort --by --limit --reset" ;;
            clients) _kopsctl_words "$common --users" ;;
            top) _kopsctl_words "$common --batch --iterations --delay --sort" ;;
            trace) _kopsctl_words "$common --seconds --output --everybody --events" ;;
            report) _kopsctl_words "$common --output --op --device --peaks" ;;
            metrics) _kopsctl_words "$common --textfile --interval --listen --allow-remote" ;;
            drain) _kopsctl_words "$common --stop --resume" ;;
            run) _kopsctl_words "$common --shape --dtype --device --repeat --warmup --variant --attr --memory --check --counters --cache --seed --out-shape" ;;
            tune) _kopsctl_words "$common --shape --dtype --attr --device --out-shape" ;;
            tuning) _kopsctl_words "$common --clear" ;;
            compile) _kopsctl_words "$common --entry --option --arch --device --include-file" ;;
            launch)
                _kopsctl_words "$common --param --grid --block --cluster --cooperative --shared --option --arch --device --include-file --repeat \
                    --warmup --memory --show --save --seed --counters --cache"
                ;;
            check) _kopsctl_words "$common" ;;
            judge) _kopsctl_words "$common --device --strict --deadline --interpret --no-time --page --kept --board" ;;
            cache) _kopsctl_words "$common --key" ;;
        esac
        return
    fi

    case $command in
        "") _kopsctl_words "$commands" ;;
        help) ((COMP_CWORD == at + 1)) && _kopsctl_words "$commands" ;;
        ops | run | tune) ((COMP_CWORD == at + 1)) && _kopsctl_ops ;;
        compile | launch) ((COMP_CWORD == at + 1)) && _kopsctl_files ;;
        check | judge) _kopsctl_files ;;
        cache)
            if ((COMP_CWORD == at + 1)); then
                _kopsctl_words "list clear export import"
            elif [[ ${COMP_WORDS[at + 1]} == export || ${COMP_WORDS[at + 1]} == import ]]; then
                _kopsctl_files
            fi
            ;;
    esac
}

complete -F _kopsctl kopsctl
