//go:build e2e && verify

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// machine is a Debian 12 that systemd booted in namespaces of its own. Its only network is loopback.
type machine struct {
	t    testing.TB
	root string
	host string // its address, on a loopback network that all machines of a test share
	init string // the process ID of its systemd
}

// boot starts systemd in the directory $1, in the new cgroup $2. $3 and $4 say in which network.
const boot = `
hierarchy=$(mktemp -d)
mount -t cgroup2 cgroup2 "$hierarchy"
mkdir "$hierarchy/$2"
echo $$ >"$hierarchy/$2/cgroup.procs"
umount "$hierarchy"
rmdir "$hierarchy"
exec $3 unshare --mount --pid --uts --ipc --cgroup --fork --kill-child $4 /bin/sh -euc '
	mount --make-rprivate /
	mount --bind "$1" "$1"
	cd "$1"
	mount -t proc proc proc
	mount -t sysfs -o ro sysfs sys
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount -t tmpfs -o mode=755 tmpfs run
	mount -t tmpfs tmpfs tmp
	mount -t tmpfs -o mode=755 tmpfs dev
	for device in null zero full random urandom tty; do
		touch dev/$device
		mount --bind /dev/$device dev/$device
	done
	mkdir dev/pts dev/shm
	mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	ln -s /proc/self/fd dev/fd
	exec chroot . /usr/bin/env -i container=remuda PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system
' sh "$1"
`

// bootMachine boots a machine in the network of another one, or with nil in one of its own.
func bootMachine(t testing.TB, host string, network *machine) *machine {
	t.Helper()
	require.Zero(t, os.Geteuid(), "a Debian root is booted by root: run this test as root")
	base := filepath.Join(filepath.Dir(toolPath(t, "")), "debian-root")
	require.DirExists(t, base, "there is no Debian root: run 'tools/debian-root'")
	m := &machine{t: t, host: host, root: filepath.Join(t.TempDir(), "root")}
	out, err := exec.Command("cp", "-a", "--reflink=auto", base, m.root).CombinedOutput()
	require.NoError(t, err, string(out))
	group := fmt.Sprintf("remuda-e2e-%d-%s", os.Getpid(), host)
	join, own := "", "--net"
	if network != nil {
		join, own = "nsenter --net=/proc/"+network.init+"/ns/net", ""
	}
	var log bytes.Buffer
	cmd := exec.Command("/bin/sh", "-euc", boot, "sh", m.root, group, join, own)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it its child, systemd, and everything in its namespace
		_ = cmd.Wait()
		removeGroup(t, group)
	})
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	require.Eventually(t, func() bool {
		pid, _ := os.ReadFile(children)
		m.init = strings.TrimSpace(string(pid))
		name, _ := os.ReadFile("/proc/" + m.init + "/comm")
		return string(name) == "systemd\n"
	}, 30*time.Second, 50*time.Millisecond, "systemd does not start: %s", &log)
	m.within(time.Minute, `systemctl is-system-running | grep -x running`)
	require.Equal(t, "running\n", m.sh(`systemctl is-system-running`))
	return m
}

// removeGroup removes the machine's cgroup once its processes are gone.
func removeGroup(t testing.TB, group string) {
	hierarchy := t.TempDir()
	require.NoError(t, syscall.Mount("cgroup2", hierarchy, "cgroup2", 0, ""))
	defer func() { require.NoError(t, syscall.Unmount(hierarchy, 0)) }()
	require.Eventually(t, func() bool {
		return exec.Command("find", filepath.Join(hierarchy, group), "-depth", "-type", "d", "-delete").Run() == nil
	}, 30*time.Second, 100*time.Millisecond, "the cgroup %s cannot be removed", group)
}

// command is a shell's in the machine.
func (m *machine) command(script string) *exec.Cmd {
	return exec.Command("nsenter", "--target", m.init, "--all", "--root", "--wd", "/usr/bin/env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
		"REMUDA_ADDR=http://"+m.host+":4750", "/bin/sh", "-euc", `[ ! -f /root/token ] || export REMUDA_TOKEN=$(cat /root/token); `+script)
}

// sh runs a script that must succeed, and returns what it printed.
func (m *machine) sh(script string) string {
	m.t.Helper()
	cmd := m.command(script)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(m.t, err, "%s\n%s%s%s", script, out, &stderr, m.journal())
	return string(out)
}

// within runs a script until it succeeds.
func (m *machine) within(limit time.Duration, script string) {
	m.t.Helper()
	var out []byte
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		var err error
		if out, err = m.command(script).CombinedOutput(); err == nil {
			return
		}
		require.True(m.t, time.Now().Before(deadline), "not within %s: %s\n%s%s", limit, script, out, m.journal())
	}
}

// journal returns the last lines of the daemons' logs.
func (m *machine) journal() string {
	out, _ := m.command(`journalctl --no-pager -n 60 -u 'remuda-*' -u nomad; systemctl --no-pager --failed`).CombinedOutput()
	return string(out)
}

// copyIn copies a program into the machine.
func (m *machine) copyIn(from, to string) {
	m.t.Helper()
	out, err := exec.Command("install", "-D", "-m", "0755", from, filepath.Join(m.root, to)).CombinedOutput()
	require.NoError(m.t, err, string(out))
}

// write writes a file of the machine.
func (m *machine) write(file, text string) {
	m.t.Helper()
	at := filepath.Join(m.root, file)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(m.t, os.WriteFile(at, []byte(text), 0o644))
}

// files lists what is on the machine's disk, with owner and mode, without what /tmp and /run have.
func (m *machine) files() map[string]string {
	m.t.Helper()
	files := map[string]string{}
	for line := range strings.Lines(m.sh(`find / -xdev -printf '%p\t%u:%g %m %l\n'`)) {
		path, about, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[path] = strings.TrimSpace(about)
	}
	return files
}
