package torture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// now is CLOCK_MONOTONIC, which is the same in every process.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail on Linux
	return ts.Nano()
}

const (
	// slotsPerGroup is more than a round has holders and children.
	slotsPerGroup = 4096
	// lookBack is how many of the newest slots are looked at with each beat.
	lookBack = 48
	// beatEvery is how often a process that holds says so.
	beatEvery = 2 * time.Millisecond
)

// slot is what one process says of itself. All fields are atomic, since
// others read them meanwhile.
type slot struct {
	life, token, pid atomic.Uint64
	// granted is when the holder knew of its grant.
	granted atomic.Int64
	// beat is a time at which the process surely lived and held.
	beat atomic.Int64
	_    [3]uint64
}

type groupPage struct {
	// last is the largest token that a holder has marked.
	last atomic.Uint64
	used atomic.Uint64
	_    [6]uint64
	slot [slotsPerGroup]slot
}

// page is memory that all processes of a round share.
type page struct {
	raw    []byte
	groups []groupPage
}

func openPage(path string, groups int) (*page, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the shared page: %w", err)
	}
	defer f.Close()
	size := groups * int(unsafe.Sizeof(groupPage{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("size the shared page: %w", err)
	}
	raw, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the shared page: %w", err)
	}
	return &page{raw, unsafe.Slice((*groupPage)(unsafe.Pointer(&raw[0])), groups)}, nil
}

func (p *page) close() error { return unix.Munmap(p.raw) }

// mark is one process's place on the page.
type mark struct {
	g    *groupPage
	s    *slot
	self uint64
	told bool
}

// enter takes a slot for this process. A holder (not its children) raises the
// group's token, which must not be as large already.
func (p *page) enter(group int, life, token uint64, granted int64, holder bool) (*mark, error) {
	g := &p.groups[group]
	var err error
	for holder {
		last := g.last.Load()
		if last >= token {
			err = fmt.Errorf("token %d was granted to life %d, but token %d was granted before", token, life, last)
			break
		}
		if g.last.CompareAndSwap(last, token) {
			break
		}
	}
	s := &g.slot[(g.used.Add(1)-1)%slotsPerGroup]
	s.beat.Store(0)
	s.life.Store(life)
	s.pid.Store(uint64(os.Getpid()))
	s.granted.Store(granted)
	s.token.Store(token)
	m := &mark{g: g, s: s, self: life}
	return m, errors.Join(err, m.beat())
}

// beat says that this process lives and holds, and looks whether anybody did so
// whose turn was over. Both are exact: a beat is the time at which its process
// read the clock, so it is of before its death, and a grant's time is of after
// the grant.
func (m *mark) beat() error {
	at := now()
	m.s.beat.Store(at)
	token, granted := m.s.token.Load(), m.s.granted.Load()
	used := m.g.used.Load()
	for i := uint64(1); i <= min(used, lookBack) && !m.told; i++ {
		o := &m.g.slot[(used-i)%slotsPerGroup]
		life := o.life.Load()
		if o == m.s || life == m.self || o.beat.Load() == 0 {
			continue
		}
		switch other := o.token.Load(); {
		case other <= token && o.beat.Load() > granted:
			m.told = true
			return fmt.Errorf("process %d (life %d, token %d) lived and held %s after life %d was granted token %d",
				o.pid.Load(), life, other, time.Duration(o.beat.Load()-granted), m.self, token)
		case other >= token && at > o.granted.Load():
			m.told = true
			return fmt.Errorf("this process (life %d, token %d) lives and holds %s after life %d was granted token %d",
				m.self, token, time.Duration(at-o.granted.Load()), life, other)
		}
	}
	return nil
}

// witnessLock is a flock on the group's file. Whoever has the descriptor, a
// holder and all that inherits it, keeps it; the kernel lets go of it when the
// last of them is dead, before it says so of any of them.
type witnessLock struct{ file *os.File }

func witnessPath(dir string, group int) string {
	return filepath.Join(dir, fmt.Sprintf("flock-%d", group))
}

// takeWitness takes the lock without waiting. Where it is taken, the error says
// by whom.
func takeWitness(dir string, group int) (*witnessLock, error) {
	path := witnessPath(dir, group)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the witness: %w", err)
	}
	w := &witnessLock{f}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return w, err
	}
	began := time.Now()
	who := openBy(path)
	free := false
	for !free && time.Since(began) < 200*time.Millisecond {
		time.Sleep(time.Millisecond)
		free = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}
	return w, fmt.Errorf("the holder before it, or a child of that, lives (flock; let go within %s: %t): %s",
		time.Since(began).Round(time.Millisecond), free, who)
}

// openBy says which other processes have a file open.
func openBy(path string) string {
	var who []string
	for range 20 { // some are another process every few milliseconds
		pids, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range pids {
			if pid, _ := strconv.Atoi(filepath.Base(dir)); pid != os.Getpid() && hasOpen(dir, path) {
				who = append(who, describe(pid))
			}
		}
		if len(who) > 0 {
			return strings.Join(who, ", ")
		}
	}
	return "it was gone before it could be found"
}

func hasOpen(proc, path string) bool {
	fds, _ := os.ReadDir(filepath.Join(proc, "fd"))
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name())); err == nil && to == path {
			return true
		}
	}
	return false
}

func describe(pid int) string {
	read := func(name string) string {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		return strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
	}
	env := " " + read("environ") + " "
	_, life, _ := strings.Cut(env, " "+lifeVar+"=")
	life, _, _ = strings.Cut(life, " ")
	cmd := read("cmdline")
	return fmt.Sprintf("pid %d (life %s) %.60q stat %.40q", pid, life, cmd, read("stat"))
}

// accuse writes a violation down so that it outlives the process that saw it.
func accuse(dir string, group int, what error) {
	f, err := os.OpenFile(violationsPath(dir), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", what, err)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%d group %d: %s\n", now(), group, strings.ReplaceAll(what.Error(), "\n", "; "))
}

func violationsPath(dir string) string { return filepath.Join(dir, "violations") }

// connectionTo finds the descriptor of a connection to a Unix socket, so that a
// child can inherit it.
func connectionTo(socket string) *os.File {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		peer, err := unix.Getpeername(fd)
		if err != nil {
			continue
		}
		if u, ok := peer.(*unix.SockaddrUnix); ok && u.Name != "" {
			if dup, err := unix.FcntlInt(uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0); err == nil {
				return os.NewFile(uintptr(dup), socket)
			}
		}
	}
	return nil
}
