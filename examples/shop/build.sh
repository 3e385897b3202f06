#!/bin/sh
# Builds the two images of this example out of nothing but busybox and the scripts beside this one.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

busybox=${BUSYBOX:-$(command -v busybox || true)}
if [ -z "$busybox" ]; then
    echo "there is no busybox here: install the package busybox-static, or set BUSYBOX" >&2
    exit 2
fi
if ldd "$busybox" 2>/dev/null | grep -q '=>'; then
    echo "$busybox needs libraries that the images have not: install busybox-static" >&2
    exit 2
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
echo "*" >"$context/.dockerignore" && echo "!files" >>"$context/.dockerignore"
for image in shop mail; do
    rm -rf "$context/files"
    mkdir -p "$context/files/bin" "$context/files/data" "$context/files/tmp"
    cp "$busybox" "$context/files/bin/busybox"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$context/files/bin/$applet"
    done
    cp -R "$here/images/$image/." "$context/files"
    chmod -R a+rx "$context/files"
    cp "$here/images/Dockerfile" "$context"
    if ! docker build --tag "perdure-example/$image:1" "$context" >"$context/log" 2>&1; then
        cat "$context/log" >&2
        exit 1
    fi
    echo "built perdure-example/$image:1"
done
