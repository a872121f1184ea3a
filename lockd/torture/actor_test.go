package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/lockd"
	"remuda/lockd/client"
	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

const (
	// roleArg begins the arguments of a process that plays a part.
	roleArg = "torture-actor"
	// lifeVar says in a process's environment whose it is.
	lifeVar = "REMUDA_TORTURE_LIFE"
	// runVar is in the environment of every process of a run.
	runVar = "REMUDA_TORTURE_RUN"
	// childLife bounds children, should everything else fail.
	childLife = 60 * time.Second
)

// Play plays a part of a run if this process was started for one, and tells
// whether it was. The main function of Config.Binary must call it first.
func Play() bool {
	if len(os.Args) < 4 || os.Args[1] != roleArg {
		return false
	}
	var err error
	switch os.Args[2] {
	case "lockd":
		err = playLockd(os.Args[3])
	case "holder":
		err = playHolder(os.Args[3])
	case "child":
		err = playChild(os.Args[3])
	default:
		err = fmt.Errorf("unknown part %q", os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
	return true
}

// lockdSpec is what a lockd process is told.
type lockdSpec struct {
	Socket, State string
	Times         lock.Times
}

func playLockd(raw string) error {
	var spec lockdSpec
	if err := json.Unmarshal([]byte(raw), &spec); err != nil {
		return err
	}
	go func() { // ends with the harness
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	cfg := lockd.DefaultConfig()
	cfg.Socket, cfg.State, cfg.Times = spec.Socket, spec.State, spec.Times
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: os.Stderr, TimeFormat: "15:04:05.000000"})
	s, err := lockd.New(cfg)
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// holderSpec is what a process that wants a lock is told.
type holderSpec struct {
	Dir, Socket string
	Groups      int
	Group       int
	Name        string
	Life        uint64
	MiB         int
	Children    []string
	DiesAtGrant bool   // kills itself before it has marked anything
	Stubborn    bool   // goes on when its lock is lost
	Claim       uint64 // a token that was not granted to it: it asks for that
}

func groupName(g int) string { return fmt.Sprintf("torture-%d", g) }

// holderEvent is what a holder tells the harness.
type holderEvent struct {
	Kind  string // asked, granted, kept, lost, refused
	At    int64
	Call  int64
	Token uint64
	Text  string
}

func tell(e holderEvent) {
	if e.At == 0 {
		e.At = now()
	}
	raw, _ := json.Marshal(e)
	_, _ = os.Stdout.Write(append(raw, '\n'))
}

func playHolder(raw string) error {
	var spec holderSpec
	if err := json.Unmarshal([]byte(raw), &spec); err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, spec.MiB<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(memory) //nolint:errcheck // the process ends
	h := &player{spec: spec, orders: make(chan string)}
	go h.obey()
	if spec.Claim != 0 {
		return h.claim()
	}
	cfg := client.DefaultConfig()
	cfg.Addr, cfg.Group, cfg.Holder = spec.Socket, groupName(spec.Group), spec.Name
	if h.client, err = client.New(cfg); err != nil {
		return err
	}
	tell(holderEvent{Kind: "asked"})
	grant, err := h.client.Acquire(context.Background())
	if err != nil {
		tell(holderEvent{Kind: "refused", Text: err.Error()})
		return nil
	}
	if spec.DiesAtGrant {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	return h.hold(grant.Token(), grant)
}

// player is a holder process.
type player struct {
	spec   holderSpec
	client *client.Client
	orders chan string
}

// obey reads the harness's orders; with the harness the process ends.
func (h *player) obey() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		h.orders <- in.Text()
	}
	os.Exit(0)
}

// claim asks for a lock with a token that another process was granted, as an
// engine would that was restarted and remembers.
func (h *player) claim() error {
	c, err := net.Dial("unix", h.spec.Socket)
	if err != nil {
		return nil //nolint:nilerr // lockd is away
	}
	line, err := wire.EncodeRequest(wire.Request{Op: wire.OpAcquire, Group: groupName(h.spec.Group), Holder: h.spec.Name, Token: h.spec.Claim})
	if err != nil {
		return err
	}
	tell(holderEvent{Kind: "asked"})
	if _, err := c.Write(line); err != nil {
		return nil //nolint:nilerr // lockd is away
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	line, err = wire.NewReader(c).Line()
	if err != nil {
		return nil //nolint:nilerr // lockd is away
	}
	e, err := wire.DecodeEvent(line)
	if err != nil {
		return err
	}
	if e.Event != wire.Granted {
		tell(holderEvent{Kind: "refused", Text: e.Code})
		return nil
	}
	return h.hold(e.Token, nil)
}

// hold marks the lock as held until the process is killed, or loses it.
func (h *player) hold(token uint64, grant *client.Grant) error {
	granted := now()
	dir, group := h.spec.Dir, h.spec.Group
	witness, err := takeWitness(dir, group)
	if err != nil {
		accuse(dir, group, fmt.Errorf("overlap: life %d (pid %d) was granted token %d: %w", h.spec.Life, os.Getpid(), token, err))
	}
	if witness == nil {
		return err
	}
	page, err := openPage(pagePath(dir), h.spec.Groups)
	if err != nil {
		return err
	}
	mark, err := page.enter(group, h.spec.Life, token, granted, true)
	if err != nil {
		accuse(dir, group, fmt.Errorf("overlap: %w", err))
	}
	tell(holderEvent{Kind: "granted", At: granted, Token: token})
	go h.startChildren(witness, childSpec{dir, h.spec.Groups, group, h.spec.Life, token, granted, os.Getpid()})

	var lost <-chan struct{}
	if grant != nil {
		lost = grant.Lost()
	}
	beat := time.NewTicker(beatEvery)
	for {
		select {
		case <-beat.C:
			if err := mark.beat(); err != nil {
				accuse(dir, group, fmt.Errorf("overlap: %w", err))
			}
		case <-lost:
			tell(holderEvent{Kind: "lost", Token: token, Text: grant.Err().Error()})
			if !h.spec.Stubborn {
				return nil
			}
			lost = nil
		case order := <-h.orders:
			if grant == nil {
				continue
			}
			// It lives on without its connection: lockd must end it, unless it
			// asks again.
			lost = nil
			_ = grant.Close()
			if order == "again" {
				call := now()
				go h.again(call)
			}
		}
	}
}

// again asks for the lock that this process holds.
func (h *player) again(call int64) {
	grant, err := h.client.Acquire(context.Background())
	if err != nil {
		tell(holderEvent{Kind: "lost", Text: err.Error()})
		return
	}
	tell(holderEvent{Kind: "kept", Call: call, Token: grant.Token()})
}

// childSpec is what a child that holds a resource is told.
type childSpec struct {
	Dir     string
	Groups  int
	Group   int
	Life    uint64
	Token   uint64
	Granted int64
	Parent  int
}

// startChildren starts what may outlive the holder. Every child inherits the
// witness.
func (h *player) startChildren(w *witnessLock, spec childSpec) {
	raw, _ := json.Marshal(spec)
	resource := []string{os.Args[0], roleArg, "child", string(raw)}
	for _, kind := range h.spec.Children {
		var argv []string
		files := []*os.File{w.file}
		switch kind {
		case "child":
			argv = resource
		case "daemon": // forks twice and has a session of its own
			argv = append([]string{"setsid", "-f"}, resource...)
		case "sleeper":
			argv = []string{"setsid", "-f", "sleep", strconv.Itoa(int(childLife.Seconds()))}
		case "socket": // inherits the connection to lockd
			argv = []string{"sleep", strconv.Itoa(int(childLife.Seconds()))}
			if f := connectionTo(h.spec.Socket); f != nil {
				files = append(files, f)
			}
		case "walker": // is another process every few milliseconds, with no parent
			argv = []string{"sh", "-c", `n=0; w() { sleep 0.0$((n % 3 + 1)); n=$((n + 1)); if [ $n -lt 2000 ]; then w & fi; exit; }; w`}
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.ExtraFiles = files
		if err := cmd.Start(); err == nil {
			go func() { _ = cmd.Wait() }()
		}
	}
}

// playChild marks the lock as held, as an engine's worker does that has GPU
// memory.
func playChild(raw string) error {
	var spec childSpec
	if err := json.Unmarshal([]byte(raw), &spec); err != nil {
		return err
	}
	page, err := openPage(pagePath(spec.Dir), spec.Groups)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mark, err := page.enter(spec.Group, spec.Life, spec.Token, spec.Granted, false)
	for end := time.Now().Add(childLife); time.Now().Before(end); {
		if err != nil {
			accuse(spec.Dir, spec.Group, fmt.Errorf("overlap: child %d: %w", os.Getpid(), err))
		}
		time.Sleep(beatEvery)
		err = mark.beat()
	}
	return nil
}
