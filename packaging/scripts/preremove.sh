#!/bin/sh
# dpkg calls it with "remove" or "upgrade", rpm with the number of versions that stay.
set -e
case ${1-} in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl --no-reload disable --now remuda-controller remuda-gateway remuda-lockd remuda-gms || true
	fi
	;;
esac
