package devcluster

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"remuda/lockd/cohort"
)

// markerFile says that a directory is a dev cluster's, so that Run never
// deletes anything in a directory that it did not make.
const markerFile = ".remuda-dev"

// envMarker is set for everything that a cluster starts; its value is the
// cluster's data directory.
const envMarker = "REMUDA_DEV"

// dataDir is a locked data directory.
type dataDir struct {
	path string
	lock *os.File
}

// errInUse means that a living cluster has the directory.
var errInUse = errors.New("another remuda dev uses it")

// openDataDir locks the wanted directory, or the first free default one.
func openDataDir(want string) (*dataDir, error) {
	if want != "" {
		path, err := filepath.Abs(want)
		if err != nil {
			return nil, fmt.Errorf("-data-dir: %w", err)
		}
		d, err := lockDataDir(path)
		if err != nil {
			return nil, fmt.Errorf("-data-dir %s: %w", path, err)
		}
		return d, nil
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("no home directory for the data: give -data-dir: %w", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	for i := 1; i <= blocks; i++ {
		name := "dev"
		if i > 1 {
			name += "-" + strconv.Itoa(i)
		}
		d, err := lockDataDir(filepath.Join(state, "remuda", name))
		if errors.Is(err, errInUse) {
			continue
		}
		return d, err
	}
	return nil, fmt.Errorf("all %d default data directories are in use: give -data-dir", blocks)
}

func lockDataDir(path string) (*dataDir, error) {
	if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(path, markerFile)); err != nil {
			return nil, fmt.Errorf("the directory is not empty and not from remuda dev: give an empty or new one")
		}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	// Symbolic links are resolved, because mounts and processes show real paths.
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, markerFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, errInUse
	}
	return &dataDir{path: path, lock: lock}, nil
}

func (d *dataDir) Close() error { return d.lock.Close() }

// sockets is a directory for Unix sockets, whose paths may have 107 bytes. It is
// always the same for this data directory.
func (d *dataDir) sockets() string {
	sum := sha256.Sum256([]byte(d.path))
	return filepath.Join("/tmp", fmt.Sprintf("remuda-%d-%x", os.Getuid(), sum[:6]))
}

// nodeSockets is the directory of one node's sockets: its lockd's and its GPU memory service's.
func (d *dataDir) nodeSockets(node int) string { return filepath.Join(d.sockets(), nodeName(node)) }

func (d *dataDir) join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// wipe deletes what an earlier cluster stored, so that each starts fresh. It
// keeps what is only slow to make again (models).
func (d *dataDir) wipe() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("remove the earlier cluster's data: %w", err)
	}
	for _, e := range entries {
		kind, _, _ := strings.Cut(e.Name(), "-") // nomad, nomad-server, controller-2
		switch kind {
		case "consul", "nomad", "controller", "autoscaler", "logs", "config", "plugins", "jobs":
			if err := os.RemoveAll(d.join(e.Name())); err != nil {
				return fmt.Errorf("remove the earlier cluster's data: %w", err)
			}
		}
	}
	if err := d.wipeSockets(); err != nil {
		return err
	}
	for _, name := range []string{"consul", "nomad", "nomad-server", "logs", "config/policies", "plugins", "jobs", "models"} {
		if err := os.MkdirAll(d.join(name), 0o755); err != nil {
			return fmt.Errorf("prepare the data directory: %w", err)
		}
	}
	if err := os.Mkdir(d.sockets(), 0o700); err != nil {
		return fmt.Errorf("prepare the directory of the sockets: %w", err)
	}
	return nil
}

// wipeSockets removes the directory of the sockets.
func (d *dataDir) wipeSockets() error {
	if err := os.RemoveAll(d.sockets()); err != nil {
		return fmt.Errorf("remove the sockets: %w", err)
	}
	return nil
}

// leftover is a process that belongs to the cluster of this directory.
type leftover struct {
	cohort.Process
	name string
}

// leftovers finds living processes that a cluster with this directory
// started, directly or as a Nomad task.
func (d *dataDir) leftovers() ([]leftover, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []leftover
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if len(cmdline) == 0 || !d.owns(pid, bytes.Split(cmdline, []byte{0})) {
			continue
		}
		p, err := cohort.Lookup(pid)
		if err != nil {
			continue // ended meanwhile
		}
		args := bytes.Split(cmdline, []byte{0})
		name := filepath.Base(string(args[0]))
		if len(args) > 1 && len(args[1]) > 0 && len(args[1]) < 20 {
			name += " " + string(args[1])
		}
		found = append(found, leftover{Process: p, name: name})
	}
	return found, nil
}

// owns decides by the environment that the process was started with. Nomad's
// own helpers (executor, logmon) get a clean environment, but name files in
// the directory.
func (d *dataDir) owns(pid int, args [][]byte) bool {
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for _, kv := range bytes.Split(env, []byte{0}) {
		if string(kv) == envMarker+"="+d.path || bytes.HasPrefix(kv, []byte("NOMAD_ALLOC_DIR="+d.path+"/")) {
			return true
		}
	}
	if len(args) > 2 && (string(args[1]) == "executor" || string(args[1]) == "logmon") {
		return bytes.Contains(bytes.Join(args[2:], []byte{' '}), []byte(d.path+"/"))
	}
	return false
}

// sweep ends every leftover: SIGTERM, and SIGKILL for what is still there
// after grace. It returns how many there were.
func (d *dataDir) sweep(grace time.Duration) (int, error) {
	begin := time.Now()
	total := map[cohort.Process]bool{}
	for sent := unix.Signal(0); ; {
		left, err := d.leftovers()
		if err != nil {
			return len(total), err
		}
		if len(left) == 0 {
			return len(total), nil
		}
		sig := unix.SIGTERM
		if time.Since(begin) >= grace {
			sig = unix.SIGKILL
		}
		if time.Since(begin) > grace+10*time.Second {
			return len(total), fmt.Errorf("process %d (%s) does not end", left[0].PID, left[0].name)
		}
		for _, p := range left {
			if total[p.Process] && sig == sent {
				continue
			}
			total[p.Process] = true
			if h, err := cohort.Open(p.Process); err == nil {
				_ = h.Signal(sig)
				_ = h.Close()
			}
		}
		sent = sig
		time.Sleep(20 * time.Millisecond)
	}
}

// unmount removes mounts below the directory (Nomad mounts a task's secrets)
// and returns how many there were.
func (d *dataDir) unmount() (int, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	var points []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) > 4 {
			point := unescapeMount(fields[4])
			if strings.HasPrefix(point, d.path+"/") {
				points = append(points, point)
			}
		}
	}
	slices.SortFunc(points, func(a, b string) int { return len(b) - len(a) })
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil {
			return len(points), fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	return len(points), nil
}

// unescapeMount undoes the octal escapes of mountinfo (space, tab, newline and
// backslash).
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
