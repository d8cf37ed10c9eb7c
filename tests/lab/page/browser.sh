# Install Debian's chromium where there is none and it can be done; else say why not. The tests decide what that means.
if command -v chromium >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "chromium: not here, and no apt-get to install it with; the tests of the report in a browser are skipped"
    exit 0
fi
if [ "$(id -u)" = 0 ]; then
    as_root=
elif sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "chromium: not here, and only root can install it: apt-get install chromium"
    exit 0
fi
echo "chromium: installing it for the tests of the report"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq >/dev/null &&
    $as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null ||
    echo "chromium: apt-get could not install it"
