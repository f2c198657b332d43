#!/usr/bin/env bash
# Makes sure that Spark finds a Java of version 17 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/apt.sh

# java_major: the major version of the Java that Spark would start; 0 where there is none.
java_major() {
    local java=java version
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    version=$("$java" -version 2>&1) || version=
    version=$(sed -n 's/.* version "\([0-9]*\).*/\1/p' <<<"$version" | head -n 1)
    echo "${version:-0}"
}

[ "$(java_major)" -lt 17 ] || exit 0
if [ -z "${JAVA_HOME:-}" ] && apt_possible; then
    echo "setup: installing Java (default-jre-headless)"
    apt_install default-jre-headless || true
    hash -r
    [ "$(java_major)" -lt 17 ] || exit 0
fi
if [ -n "${JAVA_HOME:-}" ]; then
    echo "setup: JAVA_HOME holds no Java 17 or later, which Spark needs: correct it, or unset it, and run this again." >&2
else
    echo "setup: Spark needs Java 17 or later: install it (Debian: default-jre-headless, macOS: openjdk@17) and run this again." >&2
fi
exit 1
