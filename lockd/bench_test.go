package lockd_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/testkit/loopback"
	"remuda/lockd/cohort"
	"remuda/lockd/wire"
)

// BenchmarkFailover measures how long it takes from the SIGKILL of a lock's holder
// until the next one, a process of its own that waits already, has the lock:
//
//	go test ./lockd -run '^$' -bench Failover -benchtime 1x
//
// lockd is compared with a flock(2) that blocks, a flock that is tried every 100
// ms, and a session lock of a real Consul with its shortest TTL, no lock-delay and
// its own client's renewals. A shim in a Nomad task has a cgroup of its own, whose
// list of processes lockd reads; of a plain process it reads the whole of /proc, so
// that time grows with the machine's processes. Holders and waiters have memory that the kernel must
// take back first. Each round measures every row once, so that what else the
// machine does hits all alike; the Consul rounds come after, many locks at once,
// since they are all waiting.
//
// All times are of CLOCK_MONOTONIC: the kill's is taken by this process, the
// grant's by the process that gets it. The second table is of the same rounds, from
// the moment when the last process of the dead holder's cohort is gone, which a
// real-time thread with pidfds takes.
func BenchmarkFailover(b *testing.B) {
	failoverOnce.Do(func() {
		rows := failoverRows(b)
		for round := range *failoverRounds {
			for _, r := range rows {
				if round < r.rounds {
					r.measure(b)
				}
			}
		}
		rows = append(rows, consulRow(b))
		printFailover(rows)
	})
}

var (
	failoverOnce   sync.Once
	failoverRounds = flag.Int("failover.rounds", 200, "rounds of BenchmarkFailover")
	failoverLarge  = flag.Int("failover.large", 200, "rounds of BenchmarkFailover with 1 GiB")
	failoverConsul = flag.Int("failover.consul", 200, "rounds of BenchmarkFailover with Consul, 40 at a time, each 10 to 20 s; 0 for none")
)

// pollEvery is how often the polled flock is tried.
const pollEvery = 100 * time.Millisecond

// benchSettings are what a process of the benchmark is told.
type benchSettings struct {
	// Kind is what it locks: lockd, flock, polled or consul. Target is the socket,
	// the file or the address, and Group the lock there.
	Kind, Target, Group string
	// Size is how many bytes it has resident.
	Size int
	// Children is how many processes it starts when it has the lock, which outlive
	// it.
	Children int
	// Task: it is as a shim in a Nomad task, which has a cgroup of its own and also
	// holds the lock of its engine.
	Task bool
}

// runBench says "waiting", "granted NANOSECONDS" and "left PID", one a line.
func runBench(raw string) error {
	var set benchSettings
	if err := json.Unmarshal([]byte(raw), &set); err != nil {
		return err
	}
	go func() { // it does not outlive the benchmark
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if set.Size > 0 {
		defer occupy(set.Size)()
	}
	take := map[string]func(benchSettings) error{
		"lockd": takeLockd, "flock": takeFlock, "polled": takePolled, "consul": takeConsul,
	}[set.Kind]
	if err := take(set); err != nil {
		return fmt.Errorf("%s: %w", set.Kind, err)
	}
	fmt.Println("granted", monotonic())
	for range set.Children {
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Println("left", cmd.Process.Pid)
	}
	select {}
}

// monotonic is CLOCK_MONOTONIC, the same in all processes.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		exit(err)
	}
	return ts.Nano()
}

func takeLockd(set benchSettings) error {
	if set.Task {
		if err := acquireLockd(set.Target, fmt.Sprintf("%s:%d", set.Group, os.Getpid())); err != nil {
			return err
		}
	}
	return acquireLockd(set.Target, set.Group)
}

// untilEnd are connections that stay open as long as this process lives: a lock is its
// connection, and the garbage collector closes one that nothing refers to.
var untilEnd []net.Conn

func acquireLockd(socket, group string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	untilEnd = append(untilEnd, c)
	line, err := wire.EncodeRequest(wire.Request{Op: wire.OpAcquire, Group: group, Holder: strconv.Itoa(os.Getpid())})
	if err == nil {
		_, err = c.Write(line)
	}
	for r := wire.NewReader(c); err == nil; {
		if line, err = r.Line(); err != nil {
			return err
		}
		e, err := wire.DecodeEvent(line)
		switch {
		case err != nil:
			return err
		case e.Event == wire.Granted:
			return nil
		case e.Event == wire.Waiting:
			fmt.Println("waiting")
		default:
			return fmt.Errorf("%+v", e)
		}
	}
	return err
}

func takeFlock(set benchSettings) error {
	fd, err := unix.Open(set.Target, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	fmt.Println("waiting")
	for {
		if err := unix.Flock(fd, unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}

func takePolled(set benchSettings) error {
	fd, err := unix.Open(set.Target, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for waiting := false; ; {
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
			return err
		}
		if !waiting {
			waiting = true
			fmt.Println("waiting")
		}
		time.Sleep(pollEvery)
	}
}

// takeConsul takes a lock as Consul's client does. It makes the session itself:
// the client cannot ask for no lock-delay.
func takeConsul(set benchSettings) error {
	cfg := consul.DefaultConfig()
	cfg.Address = set.Target
	c, err := consul.NewClient(cfg)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPut, "http://"+set.Target+"/v1/session/create", strings.NewReader(`{"TTL":"10s","LockDelay":"0s","Behavior":"release"}`))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var session struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&session); err != nil {
		return err
	}
	go func() { exit(c.Session().RenewPeriodic("10s", session.ID, nil, nil)) }()
	l, err := c.LockOpts(&consul.LockOptions{Key: "bench/" + set.Group, Session: session.ID})
	if err != nil {
		return err
	}
	fmt.Println("waiting")
	_, err = l.Lock(nil)
	return err
}

// benchProcess is a process that has the lock or waits for it.
type benchProcess struct {
	cmd   *exec.Cmd
	lines chan string
	// cgroup is the directory of its own cgroup, empty for none.
	cgroup string
}

func startBench(b *testing.B, set benchSettings) *benchProcess {
	b.Helper()
	raw, err := json.Marshal(set)
	require.NoError(b, err)
	p := &benchProcess{cmd: exec.Command(self(b), "test-bench", string(raw)), lines: make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), cohort.EnvVar+"="+newCohort())
	p.cmd.Stderr = os.Stderr
	_, err = p.cmd.StdinPipe()
	require.NoError(b, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(b, err)
	if set.Task {
		p.cgroup = filepath.Join(cgroup2, fmt.Sprintf("remuda-bench-%s", newCohort()))
		require.NoError(b, os.Mkdir(p.cgroup, 0o755))
		dir, err := os.Open(p.cgroup)
		require.NoError(b, err)
		defer dir.Close()
		p.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	require.NoError(b, p.cmd.Start())
	b.Cleanup(p.end)
	go func() {
		defer close(p.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	return p
}

func (p *benchProcess) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	if p.cgroup == "" {
		return
	}
	_ = os.WriteFile(filepath.Join(p.cgroup, "cgroup.kill"), []byte("1"), 0o200)
	for range 100 { // until its last process has ended
		if err := os.Remove(p.cgroup); err == nil || os.IsNotExist(err) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// cgroup2 is where cgroups of version 2 can be made, empty where they cannot.
var cgroup2 = func() string {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil && os.Geteuid() == 0 {
			return root
		}
	}
	return ""
}()

// next is the number of the next line of that kind, 0 where it has none.
func (p *benchProcess) next(b *testing.B, kind string, within time.Duration) int64 {
	b.Helper()
	deadline := time.After(within)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				b.Fatalf("a process ended while %q was awaited", kind)
			}
			got, number, _ := strings.Cut(line, " ")
			if got == kind {
				n, _ := strconv.ParseInt(number, 10, 64)
				return n
			}
		case <-deadline:
			b.Fatalf("no %q within %s", kind, within)
		}
	}
}

// blocked waits until the process waits in the kernel, where its lock does so.
func (p *benchProcess) blocked(b *testing.B, kind string) {
	b.Helper()
	p.next(b, "waiting", patience)
	if kind != "flock" {
		return
	}
	mark := fmt.Sprintf(" %d ", p.cmd.Process.Pid)
	require.Eventually(b, func() bool {
		raw, err := os.ReadFile("/proc/locks")
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, "->") && strings.Contains(line, mark) {
				return true
			}
		}
		return err != nil
	}, patience, time.Millisecond)
}

// failoverRow is one line of the tables, and a holder and a waiter between the
// rounds.
type failoverRow struct {
	name   string
	set    benchSettings
	rounds int

	holder, waiter *benchProcess
	// fromKill and fromGone are what each round has taken.
	fromKill, fromGone []time.Duration
}

func failoverRows(b *testing.B) []*failoverRow {
	b.Helper()
	dir := shortDir(b)
	d := makeDaemon(b, nil)
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(b, err)
	b.Cleanup(func() { log.Close() })
	d.logFile = log // as a real one's, and not in the way of this process
	d.start()

	var rows []*failoverRow
	add := func(name, kind, target string, size, children int, task bool) {
		r := &failoverRow{name: name, set: benchSettings{kind, target, fmt.Sprintf("g-%d-%d-%t", size, children, task), size, children, task}, rounds: *failoverRounds}
		if size >= 1<<30 {
			r.rounds = min(*failoverLarge, *failoverRounds)
		}
		r.holder = startBench(b, r.set)
		r.holder.next(b, "granted", patience)
		r.waiter = startBench(b, r.set)
		r.waiter.blocked(b, kind)
		rows = append(rows, r)
	}
	for _, size := range []int{0, 256 << 20, 1 << 30} {
		if cgroup2 != "" {
			add("lockd, shim in a task", "lockd", d.cfg.Socket, size, 0, true)
		}
		add("lockd, plain process", "lockd", d.cfg.Socket, size, 0, false)
		for _, kind := range []string{"flock", "polled"} {
			path := filepath.Join(dir, fmt.Sprint(kind, size))
			require.NoError(b, os.WriteFile(path, nil, 0o600))
			add(map[string]string{"flock": "flock, blocking", "polled": "flock, every 100 ms"}[kind], kind, path, size, 0, false)
		}
	}
	if cgroup2 != "" {
		add("the shim, 4 survivors", "lockd", d.cfg.Socket, 0, 4, true)
	}
	add("plain, 4 survivors", "lockd", d.cfg.Socket, 0, 4, false)
	return rows
}

// measure kills the holder and starts a new waiter.
func (r *failoverRow) measure(b *testing.B) {
	b.Helper()
	pids := []int{r.holder.cmd.Process.Pid}
	for range r.set.Children {
		pids = append(pids, int(r.holder.next(b, "left", patience)))
	}
	gone := watchGone(b, pids)
	if r.set.Kind == "polled" { // at any moment between two tries
		time.Sleep(time.Duration(rand.IntN(int(pollEvery))))
	}
	killed := monotonic()
	require.NoError(b, r.holder.cmd.Process.Kill())
	granted := r.waiter.next(b, "granted", patience)
	r.fromKill = append(r.fromKill, time.Duration(granted-killed))
	if r.set.Kind == "lockd" {
		r.fromGone = append(r.fromGone, time.Duration(granted-<-gone))
	} else {
		<-gone
	}
	r.holder.end()
	r.holder = r.waiter
	r.waiter = startBench(b, r.set)
	r.waiter.blocked(b, r.set.Kind)
}

// watchGone tells when the last of the processes was gone.
func watchGone(b *testing.B, pids []int) <-chan int64 {
	b.Helper()
	fds := make([]int, len(pids))
	for i, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		require.NoError(b, err)
		fds[i] = fd
	}
	ready, at := make(chan struct{}), make(chan int64, 1)
	go func() {
		// The thread comes first when the processes are gone, where that is
		// allowed. It ends with the goroutine.
		runtime.LockOSThread()
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 10}, 0)
		close(ready)
		for _, fd := range fds {
			for {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
				if n > 0 || err != nil && err != unix.EINTR {
					break
				}
			}
		}
		at <- monotonic()
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	<-ready
	return at
}

// consulRow measures many locks of one Consul at once. A session ends up to twice
// its TTL after its last renewal, so a round takes 10 to 20 s.
func consulRow(b *testing.B) *failoverRow {
	b.Helper()
	r := &failoverRow{name: "Consul session, TTL 10 s", set: benchSettings{Kind: "consul"}}
	bin := consulBinary()
	if bin == "" || *failoverConsul == 0 {
		r.name += " (no consul)"
		return r
	}
	r.set.Target = startConsul(b, bin)
	var mu sync.Mutex
	for done := 0; done < *failoverConsul; {
		var batch sync.WaitGroup
		for range min(40, *failoverConsul-done) {
			set := r.set
			set.Group = strconv.Itoa(done)
			done++
			holder := startBench(b, set)
			holder.next(b, "granted", patience)
			waiter := startBench(b, set)
			waiter.next(b, "waiting", patience)
			batch.Go(func() {
				defer waiter.end()
				time.Sleep(time.Duration(rand.IntN(int(5 * time.Second)))) // between two renewals
				killed := monotonic()
				holder.end()
				select {
				case line := <-waiter.lines:
					granted, err := strconv.ParseInt(strings.TrimPrefix(line, "granted "), 10, 64)
					if err != nil {
						b.Errorf("consul: %q", line)
						return
					}
					mu.Lock()
					r.fromKill = append(r.fromKill, time.Duration(granted-killed))
					mu.Unlock()
				case <-time.After(time.Minute):
					b.Error("consul: no grant within a minute")
				}
			})
		}
		batch.Wait()
	}
	return r
}

// consulBinary is empty where there is none.
func consulBinary() string {
	for _, dir := range []string{os.Getenv("REMUDA_TOOLS"), filepath.Join("..", ".tools", "bin")} {
		path, err := filepath.Abs(filepath.Join(dir, "consul"))
		if err != nil || dir == "" {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// startConsul starts a Consul server of its own and returns its address.
func startConsul(b *testing.B, bin string) string {
	b.Helper()
	port := func() string {
		_, port, err := net.SplitHostPort(loopback.Free(b))
		require.NoError(b, err)
		return port
	}
	http := port()
	cmd := exec.Command(bin, "agent", "-dev", "-bind", "127.0.0.1", "-log-level", "error", "-http-port", http, "-server-port", port(),
		"-serf-lan-port", port(), "-dns-port", "-1", "-grpc-port", "-1", "-hcl", `ports { serf_wan = -1 grpc_tls = -1 }`)
	cmd.Env = append(os.Environ(), "CONSUL_HTTP_ADDR=")
	cmd.Stderr = os.Stderr
	require.NoError(b, cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	cfg := consul.DefaultConfig()
	cfg.Address = "127.0.0.1:" + http
	c, err := consul.NewClient(cfg)
	require.NoError(b, err)
	require.Eventually(b, func() bool {
		leader, err := c.Status().Leader()
		if err != nil || leader == "" {
			return false
		}
		_, err = c.KV().Put(&consul.KVPair{Key: "bench/ready"}, nil)
		return err == nil
	}, time.Minute, 50*time.Millisecond, "consul does not start")
	return cfg.Address
}

func printFailover(rows []*failoverRow) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	fmt.Printf("\n%d cores, %s, %d processes on the machine\n\nSIGKILL of the holder to grant received\n\n", runtime.NumCPU(), runtime.Version(), len(processes))
	head := func() {
		fmt.Printf("%-24s %9s %5s %11s %11s %11s\n", "lock", "resident", "n", "p50 ms", "p99 ms", "max ms")
	}
	line := func(r *failoverRow, all []time.Duration) {
		if len(all) == 0 {
			fmt.Printf("%-24s %9s %5d\n", r.name, bytesText(r.set.Size), 0)
			return
		}
		slices.Sort(all)
		ms := func(q float64) float64 {
			return float64(all[max(0, (int(q*float64(len(all))+.999999))-1)]) / float64(time.Millisecond)
		}
		fmt.Printf("%-24s %9s %5d %11.2f %11.2f %11.2f\n", r.name, bytesText(r.set.Size), len(all), ms(.5), ms(.99), ms(1))
	}
	head()
	for _, r := range rows {
		line(r, r.fromKill)
	}
	fmt.Printf("\nCohort gone to grant received\n\n")
	head()
	for _, r := range rows {
		if r.fromGone != nil {
			line(r, r.fromGone)
		}
	}
	fmt.Println()
}

func bytesText(n int) string {
	switch {
	case n == 0:
		return "0"
	case n < 1<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%d GiB", n>>30)
	}
}
