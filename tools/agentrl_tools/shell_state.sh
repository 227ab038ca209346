# Evaluated by a fresh bash before its command: gets out of the command's sight, and writes down what
# lives on when the command has ended. Forks nothing of its own on the way out, because the command
# may have left no process to spare. Every builtin is called as one: the model may have a function of
# that name.

unset -v __agentrl_script
exec </dev/null 2>&1
__agentrl_root=$PWD
__agentrl_file=$PWD/.agentrl-shell
command -p rm -f -- "$__agentrl_file" 2>/dev/null
shopt -s expand_aliases
trap '{ __agentrl_end "$?"; } >/dev/null 2>&1' EXIT

# Prints a path so that it can be read back where the session's directory lies elsewhere.
__agentrl_path() {
  if [[ $1 == "$__agentrl_root" || $1 == "$__agentrl_root"/* ]]; then
    builtin printf '"$__agentrl_root"%q' "${1#"$__agentrl_root"}"
  else
    builtin printf '%q' "$1"
  fi
}

# Does what is asked with every variable that lives on: `declare -p` or `unset -v`.
__agentrl_variables() {
  builtin local __agentrl_name
  # By their first letters, because neither a fork nor the parser can be counted on here: bash 5.2
  # damages its own memory when it reads on after a command with an open `$(`.
  for __agentrl_name in "${!_@}" "${!a@}" "${!b@}" "${!c@}" "${!d@}" "${!e@}" "${!f@}" "${!g@}" \
    "${!h@}" "${!i@}" "${!j@}" "${!k@}" "${!l@}" "${!m@}" "${!n@}" "${!o@}" "${!p@}" "${!q@}" \
    "${!r@}" "${!s@}" "${!t@}" "${!u@}" "${!v@}" "${!w@}" "${!x@}" "${!y@}" "${!z@}" "${!A@}" \
    "${!B@}" "${!C@}" "${!D@}" "${!E@}" "${!F@}" "${!G@}" "${!H@}" "${!I@}" "${!J@}" "${!K@}" \
    "${!L@}" "${!M@}" "${!N@}" "${!O@}" "${!P@}" "${!Q@}" "${!R@}" "${!S@}" "${!T@}" "${!U@}" \
    "${!V@}" "${!W@}" "${!X@}" "${!Y@}" "${!Z@}"; do
    case $__agentrl_name in
      BASH_COMPAT | BASH_ENV) builtin "$@" "$__agentrl_name" ;;
      # What bash itself keeps, and what begins anew with every process.
      _ | __agentrl_* | BASH | BASHOPTS | BASHPID | BASH_* | COMP_* | DIRSTACK | EPOCHREALTIME | \
        EPOCHSECONDS | EUID | FUNCNAME | GROUPS | HISTCMD | LINENO | OLDPWD | PIPESTATUS | PPID | \
        PWD | RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID) ;;
      # The sandbox sets them, and a copy of the session may lie elsewhere.
      HOME | TMPDIR)
        [[ ${!__agentrl_name} == "$__agentrl_root" ]] || builtin "$@" "$__agentrl_name"
        ;;
      *) builtin "$@" "$__agentrl_name" ;;
    esac
  done
}

__agentrl_places() {
  builtin local __agentrl_at
  [[ $PWD -ef . ]] || { __agentrl_at=$(builtin pwd -P) && PWD=$__agentrl_at; }
  builtin printf '\nbuiltin cd -- '
  __agentrl_path "${OLDPWD-$PWD}"
  builtin printf '\nbuiltin cd -- '
  __agentrl_path "$PWD"
  builtin printf ' || __agentrl_lost=%q\n' "${PWD#"$__agentrl_root"/}"
  for ((__agentrl_at = ${#DIRSTACK[@]} - 1; __agentrl_at > 0; __agentrl_at--)); do
    builtin printf 'builtin pushd -n -- '
    __agentrl_path "${DIRSTACK[__agentrl_at]}"
    builtin printf '\n'
  done
}

__agentrl_options() {
  builtin local __agentrl_rest=$1: __agentrl_option
  builtin printf 'builtin set +o braceexpand +o hashall +o interactive-comments\n'
  while [[ $__agentrl_rest ]]; do
    __agentrl_option=${__agentrl_rest%%:*}
    __agentrl_rest=${__agentrl_rest#*:}
    case $__agentrl_option in
      # They act on the very next command, which must be the model's.
      errexit | verbose | xtrace)
        builtin printf '__agentrl_first+="set -o %s; "\n' "$__agentrl_option"
        ;;
      *) builtin printf 'builtin set -o %s\n' "$__agentrl_option" ;;
    esac
  done
}

# Options that decide how the rest is read come first, aliases and options that change what follows
# last. Locals of a function that calls `exit` are among the variables: bash runs the trap in it.
__agentrl_save() {
  builtin local __agentrl_set=$SHELLOPTS
  builtin set +o errexit +o nounset +o xtrace +o verbose
  builtin umask -p
  builtin shopt -p
  builtin shopt -u nocasematch
  builtin printf '__agentrl_variables unset -v\n'
  __agentrl_variables declare -p
  __agentrl_places
  builtin unset -f __agentrl_path __agentrl_variables __agentrl_places __agentrl_begin
  builtin declare -f
  builtin alias -p
  __agentrl_options "$__agentrl_set"
  builtin printf '__agentrl_last=%s\n# %s\n' "$1" "$__agentrl_mark"
}

# The first time in the main shell: at the end of the command, or in the trap when it did not get
# there. A limit on the size of the file ends a state that is too large where it is.
__agentrl_end() {
  if [[ $BASH_SUBSHELL == 0 && -z ${__agentrl_ended-} ]]; then
    __agentrl_ended=1
    builtin trap '' XFSZ
    builtin ulimit -S -f "$__agentrl_kib"
    { __agentrl_save "$1"; } >|"$__agentrl_file"
    builtin ulimit -S -f hard
    # The command's umask may have left nobody the right to read it.
    [[ -r $__agentrl_file ]] || command -p chmod 600 -- "$__agentrl_file"
  fi
  builtin return "$1"
}

# Called when the last state is back: says what is not, and leaves the last command's `$?`.
__agentrl_begin() {
  if [[ ${__agentrl_lost+x} ]]; then
    builtin printf '(the working directory %s is gone; the shell is in the top directory)\n' \
      "$__agentrl_lost"
  fi
  builtin return "${__agentrl_last-0}"
}
