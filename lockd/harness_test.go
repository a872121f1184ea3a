package lockd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/parallel"
	"remuda/internal/testkit/proclog"
	"remuda/lockd"
	"remuda/lockd/cohort"
	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

// patience bounds every wait of these tests; none is expected to come near it.
const patience = time.Minute

// The test binary plays several parts, chosen by its first argument: the tests,
// lockd, and processes that want a lock. So each is a real process that can be
// killed and stopped.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "test-lockd":
			exit(runLockd(os.Args[2]))
		case "test-client":
			exit(runClient(os.Args[2:]))
		case "test-keeper":
			exit(runKeeper(os.Args[2]))
		case "test-bench":
			exit(runBench(os.Args[2]))
		}
	}
	parallel.Raise("6")
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// daemonSettings are what a lockd process is told.
type daemonSettings struct {
	Socket, State, Node, Listen string
	Times                       lock.Times
}

// runLockd serves until it is killed.
func runLockd(raw string) error {
	cfg := lockd.DefaultConfig()
	var set daemonSettings
	if err := json.Unmarshal([]byte(raw), &set); err != nil {
		return err
	}
	cfg.Socket, cfg.State, cfg.Node, cfg.Listen, cfg.Times = set.Socket, set.State, set.Node, set.Listen, set.Times
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
	cfg.OnEnd = func(group, _ string) { cfg.Logger.Info("OnEnd", "of", group) }
	s, err := lockd.New(cfg)
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// runClient acquires a lock, prints what lockd says, and does as it is told on
// standard input. Its arguments are the socket, the group, the holder's name, the
// token, what it does first: "", "memory=BYTES", or "witness=PID", which looks
// at that process in the moment of the grant; and the version of the protocol that it speaks.
func runClient(args []string) error {
	if size, ok := strings.CutPrefix(args[4], "memory="); ok {
		n, err := strconv.Atoi(size)
		if err != nil {
			return err
		}
		defer occupy(n)()
	}
	heard := io.Writer(os.Stdout)
	if of, ok := strings.CutPrefix(args[4], "witness="); ok {
		pid, err := strconv.Atoi(of)
		if err != nil {
			return err
		}
		heard = witness(pid)
	}
	c, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	token, err := strconv.ParseUint(args[3], 10, 64)
	if err != nil {
		return err
	}
	version, err := strconv.Atoi(args[5])
	if err != nil {
		return err
	}
	line, err := wire.EncodeRequest(wire.Request{Op: wire.OpAcquire, Protocol: version, Group: args[1], Holder: args[2], Token: token})
	if err != nil {
		return err
	}
	if _, err := c.Write(line); err != nil {
		return err
	}
	go func() {
		// What lockd says is passed on as it is; its end is said, too.
		_, _ = io.Copy(heard, c)
		fmt.Println(`{"event":"end"}`)
	}()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if err := obey(in.Text(), c); err != nil {
			return err
		}
	}
	return in.Err()
}

// occupy makes n bytes resident, until the returned function is called.
func occupy(n int) (release func()) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_POPULATE)
	if err != nil {
		exit(fmt.Errorf("map %d bytes: %w", n, err))
	}
	return func() { _ = syscall.Munmap(b) }
}

// witness passes on what lockd says. With a grant it says before that whether the
// process with that ID holds anything.
type witness int

func (w witness) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"granted"`)) {
		code := "gone"
		if s, err := cohort.Lookup(int(w)); err == nil {
			code = fmt.Sprintf("alive: %+v", s)
		}
		fmt.Printf("{\"event\":\"witness\",\"code\":%q}\n", code)
	}
	return os.Stdout.Write(p)
}

// obey leaves processes behind, in every way that engines do.
func obey(order string, c net.Conn) error {
	var cmd *exec.Cmd
	switch order {
	case "child": // that inherits the connection
		f, err := c.(*net.UnixConn).File()
		if err != nil {
			return err
		}
		cmd = exec.Command("sleep", "600")
		cmd.ExtraFiles = []*os.File{f}
	case "daemon": // double fork and a session of its own
		cmd = exec.Command("setsid", "-f", "sh", "-c", "echo $$ >&3; exec sleep 601 3>&-")
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		cmd.ExtraFiles = []*os.File{w}
		if err := cmd.Run(); err != nil {
			return err
		}
		_ = w.Close()
		pid, err := io.ReadAll(r)
		fmt.Printf("{\"event\":\"left\",\"pid\":%s}\n", strings.TrimSpace(string(pid)))
		return err
	case "nameless": // without the environment
		cmd = exec.Command("sleep", "602")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	default:
		return fmt.Errorf("unknown order %q", order)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Printf("{\"event\":\"left\",\"pid\":%d}\n", cmd.Process.Pid)
	return nil
}

// daemon is a running lockd process.
type daemon struct {
	t   testing.TB
	cfg lockd.Config
	cmd *exec.Cmd
	log *proclog.Buffer
	// logFile takes the log instead of log, if it is not nil.
	logFile *os.File
	// namespaces are the kernel's CLONE_NEW… flags that the process gets.
	namespaces uintptr
	// ended is closed when the process has ended, with err.
	ended chan struct{}
	err   error
}

// newDaemon starts a lockd in a directory of its own.
func newDaemon(t testing.TB, tune func(*lockd.Config)) *daemon {
	t.Helper()
	d := makeDaemon(t, tune)
	d.start()
	return d
}

// makeDaemon is newDaemon without the start.
func makeDaemon(t testing.TB, tune func(*lockd.Config)) *daemon {
	t.Helper()
	dir := shortDir(t)
	d := &daemon{t: t, cfg: lockd.DefaultConfig(), log: &proclog.Buffer{}}
	d.cfg.Socket, d.cfg.State = filepath.Join(dir, "sock"), filepath.Join(dir, "state")
	d.cfg.Times = lock.Times{Reconnect: 500 * time.Millisecond, SessionTTL: time.Second, LockDelay: time.Second}
	if tune != nil {
		tune(&d.cfg)
	}
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("lockd's log:\n%s", d.log)
		}
	})
	return d
}

// shortDir is a directory whose name leaves room for that of a Unix socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lockd")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// launch starts the process without waiting for it to serve.
func (d *daemon) launch() {
	d.t.Helper()
	raw, err := json.Marshal(daemonSettings{d.cfg.Socket, d.cfg.State, d.cfg.Node, d.cfg.Listen, d.cfg.Times})
	require.NoError(d.t, err)
	d.cmd = exec.Command(self(d.t), "test-lockd", string(raw))
	d.cmd.Stderr = d.log
	if d.logFile != nil {
		d.cmd.Stderr = d.logFile
	}
	if d.namespaces != 0 {
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: d.namespaces}
	}
	require.NoError(d.t, d.cmd.Start())
	d.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		d.err = cmd.Wait()
		close(ended)
	}(d.cmd, d.ended)
}

// wait waits for the end of a lockd that should not serve.
func (d *daemon) wait() error {
	d.t.Helper()
	select {
	case <-d.ended:
		return d.err
	case <-time.After(patience):
		d.t.Fatalf("lockd serves: %s", d.log)
		return nil
	}
}

func (d *daemon) start() {
	d.t.Helper()
	d.launch()
	require.Eventually(d.t, func() bool {
		c, err := net.Dial("unix", d.cfg.Socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, patience, time.Millisecond, "lockd does not serve: %s", d.log)
}

// kill is kill -9.
func (d *daemon) kill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	<-d.ended
}

// stateFile is the file in the state directory.
func (d *daemon) stateFile() string { return filepath.Join(d.cfg.State, "locks") }

// status asks for the status on a connection of its own.
func (d *daemon) status(group string) wire.Group {
	d.t.Helper()
	c, err := net.Dial("unix", d.cfg.Socket)
	require.NoError(d.t, err)
	defer c.Close()
	require.NoError(d.t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, `{"op":"status"}`+"\n")
	require.NoError(d.t, err)
	r := wire.NewReader(c)
	for {
		line, err := r.Line()
		require.NoError(d.t, err)
		e, err := wire.DecodeEvent(line)
		require.NoError(d.t, err)
		for _, g := range e.Groups {
			if g.Group == group {
				return g
			}
		}
		if !e.More {
			return wire.Group{Group: group, State: string(lock.Free)} // forgotten
		}
	}
}

// awaitState waits for a group's state.
func (d *daemon) awaitState(group string, want lock.State) wire.Group {
	d.t.Helper()
	var g wire.Group
	require.Eventually(d.t, func() bool { g = d.status(group); return g.State == string(want) }, patience, time.Millisecond,
		"the group does not become %s", want)
	return g
}

// client is a process that wants a lock.
type client struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	events chan clientEvent
}

type clientEvent struct {
	wire.Event
	PID int
	// at is when the event was read.
	at time.Time
}

func self(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return exe
}

// clientSettings are what a client differs in.
type clientSettings struct {
	token    uint64
	first    string
	cohort   string
	protocol int
}

var cohorts atomic.Int64

// newCohort is a marker that no other process of these tests has.
func newCohort() string { return fmt.Sprintf("test-%d-%d", os.Getpid(), cohorts.Add(1)) }

// newClient starts a process that asks for the lock at once.
func (d *daemon) newClient(group, holder string, set clientSettings) *client {
	d.t.Helper()
	c := d.makeClient(group, holder, set)
	c.start()
	return c
}

// makeClient is newClient without the start.
func (d *daemon) makeClient(group, holder string, set clientSettings) *client {
	d.t.Helper()
	cmd := exec.Command(self(d.t), "test-client", d.cfg.Socket, group, holder, strconv.FormatUint(set.token, 10), set.first, strconv.Itoa(set.protocol))
	if set.cohort == "" {
		set.cohort = newCohort()
	}
	cmd.Env = append(os.Environ(), cohort.EnvVar+"="+set.cohort)
	return &client{t: d.t, cmd: cmd}
}

// start starts the process, and ends it with the test.
func (c *client) start() {
	c.t.Helper()
	c.events = make(chan clientEvent, 10000)
	if c.cmd.Stderr == nil {
		c.cmd.Stderr = os.Stderr
	}
	var err error
	c.in, err = c.cmd.StdinPipe()
	require.NoError(c.t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, c.cmd.Start())
	go func() {
		defer close(c.events)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			e, err := wire.DecodeEvent(sc.Bytes())
			if err != nil {
				continue
			}
			var left struct{ PID int }
			_ = json.Unmarshal(sc.Bytes(), &left)
			c.events <- clientEvent{e, left.PID, time.Now()}
		}
	}()
	c.t.Cleanup(c.kill)
}

func (c *client) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *client) signal(sig syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(sig))
}

// next waits for the next event of that kind and skips others.
func (c *client) next(kind string) clientEvent {
	c.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, ok := <-c.events:
			require.True(c.t, ok, "the client ended while %q was awaited", kind)
			if e.Event.Event == kind {
				return e
			}
			require.NotEqual(c.t, wire.Refused, e.Event.Event, "%s: %s", e.Code, e.Error)
		case <-deadline:
			c.t.Fatalf("no event %q came", kind)
		}
	}
}

// within waits for the next event of that kind for a while only.
func (c *client) within(kind string, d time.Duration) (e clientEvent, ok bool) {
	deadline := time.After(d)
	for {
		select {
		case e, ok = <-c.events:
			if !ok || e.Event.Event == kind {
				return e, ok
			}
		case <-deadline:
			return clientEvent{}, false
		}
	}
}

func (c *client) granted() clientEvent { c.t.Helper(); return c.next(wire.Granted) }
func (c *client) waiting() clientEvent { c.t.Helper(); return c.next(wire.Waiting) }

// silent makes sure that the client is told nothing for a while.
func (c *client) silent(d time.Duration) {
	c.t.Helper()
	select {
	case e := <-c.events:
		c.t.Fatalf("unexpected event %+v", e)
	case <-time.After(d):
	}
}

// leave makes the client leave a process behind.
func (c *client) leave(how string) int {
	c.t.Helper()
	_, err := io.WriteString(c.in, how+"\n")
	require.NoError(c.t, err)
	pid := c.next("left").PID
	c.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return pid
}

// gone tells whether a process holds nothing any more.
func gone(pid int) bool {
	_, err := cohort.Lookup(pid)
	return err != nil
}
