package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/internal/testkit/enginetest"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/parallel"
	"remuda/internal/testkit/proclog"
	"remuda/lockd/engine"
)

// The test binary plays three parts, chosen by its first argument: the tests, the shim, and
// the engine. So each is a real process that can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "test-shim":
			exit(runShim(os.Args[2]))
		case "test-sim":
			exit(runSim(os.Args[2], os.Args[3], os.Args[4]))
		case "test-engine":
			exit(enginetest.Serve(os.Args[2], "m", os.Args[3]))
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

func runShim(raw string) error {
	signal.Ignore(syscall.SIGPIPE) // as `remuda engine` does
	cfg := engine.DefaultConfig()
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return err
	}
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
	var err error
	if cfg.Secret, cfg.ControllerKey, err = engine.TaskSecret(); err != nil {
		return err
	}
	if cfg.GatewayKey, err = engine.TaskGatewayKey(); err != nil {
		return err
	}
	s, err := engine.New(cfg)
	if err != nil {
		return err
	}
	if cfg.Lock != "" {
		if err := engine.Mark(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	notify(signals)
	go func() { <-signals; cancel() }()
	return s.Run(ctx)
}

// shim is a running shim process.
type shim struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string // the shim's own
	engine string
	log    *proclog.Buffer
	done   chan struct{}
	err    error
}

type settings struct {
	role    string
	loading bool
	// sleepless is an engine without sleep mode.
	sleepless bool
	consul    string
	command   []string
	// addr is the engine's; empty: any.
	addr string
	tune func(*engine.Config)
	// env is added to the shim's environment.
	env []string
	// stderr is where the shim logs; nil: its log.
	stderr *os.File
	// parent wraps the shim's command line, for tests of its parent's death.
	parent []string
}

func startShim(t *testing.T, set settings) *shim {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	addr, own := loopback.Free(t), loopback.Free(t)
	if set.addr != "" {
		addr = set.addr
	}
	cfg := engine.DefaultConfig()
	cfg.Name = replica.Name{Model: "m", Variant: "v", ID: "r1"}
	cfg.Role, cfg.Listen, cfg.EngineURL, cfg.Slots = set.role, own, "http://"+addr, 4
	if cfg.Role == "" {
		cfg.Role = replica.RolePrimary
	}
	loading := "ready"
	if set.loading {
		loading = "loading"
	}
	if set.sleepless {
		loading = "sleepless"
	}
	cfg.Command = []string{exe, "test-engine", addr, loading}
	if set.command != nil {
		cfg.Command = set.command
	}
	cfg.Generation = 7
	cfg.HealthInterval, cfg.DrainSettle, cfg.TTL = 50*time.Millisecond, 50*time.Millisecond, 3*time.Second
	if set.consul != "" {
		cfg.Consul = &consul.Address{Addr: set.consul}
	}
	if set.tune != nil {
		set.tune(&cfg)
	}
	cfg.Logger = nil
	raw, err := json.Marshal(cfg)
	require.NoError(t, err)
	args := append(append([]string{}, set.parent...), exe, "test-shim", string(raw))
	s := &shim{t: t, url: "http://" + cfg.Listen, engine: cfg.EngineURL, log: &proclog.Buffer{}, done: make(chan struct{})}
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(os.Environ(), set.env...)
	s.cmd.Stderr = s.log
	if set.stderr != nil {
		s.cmd.Stderr = set.stderr
	}
	s.cmd.WaitDelay = 20 * time.Second
	require.NoError(t, s.cmd.Start())
	go func() { s.err = s.cmd.Wait(); close(s.done) }()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
		if t.Failed() {
			t.Logf("the shim's log:\n%s", s.log)
		}
	})
	return s
}

// patience bounds every wait of these tests; none is expected to come near it.
const patience = time.Minute

func (s *shim) await(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not within %s", what, patience)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (s *shim) status() (engine.Status, bool) {
	var st engine.Status
	resp, err := http.Get(s.url + "/state")
	if err != nil {
		return st, false
	}
	defer resp.Body.Close()
	return st, json.NewDecoder(resp.Body).Decode(&st) == nil
}

func (s *shim) awaitState(want engine.State) engine.Status {
	s.t.Helper()
	var st engine.Status
	s.await("state "+string(want), func() bool {
		var ok bool
		st, ok = s.status()
		return ok && st.State == want
	})
	return st
}

func (s *shim) exited() error {
	s.t.Helper()
	select {
	case <-s.done:
		return s.err
	case <-time.After(patience):
		s.t.Fatalf("the shim did not exit within %s", patience)
		return nil
	}
}

// call makes a request and returns the status code and body.
func call(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func (s *shim) control(what string) string {
	s.t.Helper()
	code, body := call(s.t, http.MethodPost, s.engine+"/test/"+what)
	require.Equal(s.t, 200, code, body)
	return strings.TrimSpace(body)
}

// leave makes the engine leave processes behind in every known way and
// returns their IDs.
func (s *shim) leave() []int {
	s.t.Helper()
	var pids []int
	for _, how := range []string{"child", "nameless"} {
		pid, err := strconv.Atoi(s.control(how))
		require.NoError(s.t, err)
		pids = append(pids, pid)
	}
	s.control("daemon")
	st, _ := s.status()
	s.await("the daemon", func() bool {
		for _, pid := range withEnv("REMUDA_COHORT=" + st.Cohort) {
			if cmdline(pid) == "sleep 601" {
				pids = append(pids, pid)
				return true
			}
		}
		return false
	})
	return append(pids, st.PID)
}

func cmdline(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
}

func withEnv(kv string) []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		for _, have := range strings.Split(string(raw), "\x00") {
			if have == kv {
				pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// gone tells whether pid has ended (a zombie has).
func gone(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(after, "Z")
}

func (s *shim) awaitGone(pids []int) {
	s.t.Helper()
	for _, pid := range pids {
		s.await(fmt.Sprintf("end of process %d (%s)", pid, cmdline(pid)), func() bool { return gone(pid) })
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err == nil {
		return 0
	}
	return -2
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, sig))
}
