#!/bin/sh
# What stays is data, and with it the user that owns it.
set -e
if [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload || true
fi
case ${1-} in
remove | purge | 0)
	rm -rf /run/remuda
	rmdir /var/log/remuda 2>/dev/null || true
	if [ ! -e /var/lib/remuda ] && getent passwd remuda >/dev/null; then
		userdel remuda
	fi
	;;
esac
