# The other scripts source this file. It installs Debian packages if this machine allows it.

# apt_possible: true if apt exists and this user is root, directly or by sudo without a password.
apt_possible() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null
}

# apt_install PACKAGE...: installs quietly and starts no service (RUNLEVEL=1). Prints apt's output only if it fails.
apt_install() {
    apt_possible || return 1
    local as_root=() log
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
    log=$(mktemp)
    if "${as_root[@]}" apt-get -qq update >"$log" 2>&1 </dev/null &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
            apt-get -qq install -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; then
        rm -f "$log"
        return 0
    fi
    tail -n 15 "$log" >&2
    rm -f "$log"
    return 1
}
