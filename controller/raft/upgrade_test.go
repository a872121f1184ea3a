package raft_test

import (
	"bytes"
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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/nextlevel"
	"remuda/internal/testkit/proclog"
)

// childServer is set in the environment of a child that is a server of a cluster: its
// childConfiguration as JSON.
const childServer = "REMUDA_TEST_RAFT_SERVER"

type childConfiguration struct {
	Dir, Raft, HTTP string
	Join            []string
}

// childCommands are the commands that a child takes, by name. The next feature level adds
// one.
var childCommands = map[string]func() state.Command{
	"switch": func() state.Command { return new(state.SetSwitch) },
}

// childSelf is what a child reports of itself.
type childSelf struct {
	ID     string
	Leader bool
	// Level is its feature level, Lowest that of all members as it knows them.
	Level, Lowest int
	Index         uint64
}

// serveForEver is one server of a cluster, with an HTTP API for the test:
// POST /apply/{command}, GET /self, GET /snapshot, POST /lead/{id}.
func serveForEver(text string) {
	fmt.Fprintln(os.Stderr, serve(text))
	os.Exit(1)
}

func serve(text string) error {
	// It ends with the test's process, whatever happens to that.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var child childConfiguration
	if err := json.Unmarshal([]byte(text), &child); err != nil {
		return err
	}
	cfg := raft.DefaultConfig()
	store, err := state.New()
	if err != nil {
		return err
	}
	cfg.DataDir, cfg.Bind, cfg.Store, cfg.BootstrapExpect, cfg.Join = child.Dir, child.Raft, store, 3, child.Join
	cfg.RetryInterval, cfg.ServerStabilizationTime = 50*time.Millisecond, 250*time.Millisecond
	// Whoever was away for a moment gets a snapshot, of whichever version leads.
	cfg.SnapshotInterval, cfg.SnapshotThreshold, cfg.TrailingLogs = 20*time.Millisecond, 10, 2
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Info})
	company(&cfg)
	node, err := raft.Open(cfg)
	if err != nil {
		return err
	}
	go func() {
		terminate := make(chan os.Signal, 1)
		signal.Notify(terminate, syscall.SIGTERM)
		<-terminate
		_ = node.Close()
		os.Exit(0)
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apply/{command}", func(w http.ResponseWriter, r *http.Request) {
		// As the API does: what this version does not know is refused by name.
		empty, ok := childCommands[r.PathValue("command")]
		if !ok {
			http.Error(w, "unknown command", http.StatusBadRequest)
			return
		}
		c, body := empty(), json.NewDecoder(r.Body)
		body.DisallowUnknownFields()
		if err := body.Decode(c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		switch _, err := node.Apply(ctx, c); {
		case errors.Is(err, raft.ErrUnknownOutcome):
			http.Error(w, err.Error(), http.StatusGatewayTimeout)
		case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrBusy), errors.Is(err, raft.ErrClosed):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	mux.HandleFunc("GET /self", func(w http.ResponseWriter, _ *http.Request) {
		now, _ := node.Leadership()
		_ = json.NewEncoder(w).Encode(childSelf{ID: node.ID(), Leader: now.Leader, Level: cfg.FeatureLevel, Lowest: node.FeatureLevel(), Index: store.View().Index()})
	})
	mux.HandleFunc("GET /switches", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(store.View().Switches(nil))
	})
	mux.HandleFunc("GET /snapshot", func(w http.ResponseWriter, _ *http.Request) { _, _ = node.WriteSnapshot(store.View(), w) })
	mux.HandleFunc("POST /lead/{id}", func(w http.ResponseWriter, r *http.Request) {
		if err := node.TransferLeadership(r.Context(), r.PathValue("id")); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	failed := make(chan error, 1)
	go func() { failed <- http.ListenAndServe(child.HTTP, mux) }()
	select {
	case err := <-failed:
		return err
	case <-node.Failed():
		return node.Err()
	}
}

// childProcess is a server in a process of its own.
type childProcess struct {
	t      *testing.T
	config childConfiguration
	cmd    *exec.Cmd
	stderr *proclog.Buffer
	ended  chan struct{}
}

// start starts the server with a program, which is a test binary of this package.
func (p *childProcess) start(program string) {
	p.t.Helper()
	text, err := json.Marshal(p.config)
	require.NoError(p.t, err)
	p.cmd, p.stderr, p.ended = exec.Command(program), &proclog.Buffer{}, make(chan struct{})
	p.cmd.Env = append(os.Environ(), childServer+"="+string(text))
	p.cmd.Stderr = p.stderr
	_, err = p.cmd.StdinPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, p.cmd.Start())
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(p.cmd, p.ended)
}

func (p *childProcess) end(sig os.Signal) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(sig) // It may have ended by itself.
	<-p.ended
}

var childClient = &http.Client{Timeout: 20 * time.Second}

// request returns the body of a successful response; status is 0 without a response.
func (p *childProcess) request(method, path, body string) (answer []byte, status int, err error) {
	rq, err := http.NewRequest(method, "http://"+p.config.HTTP+path, strings.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	resp, err := childClient.Do(rq)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return answer, resp.StatusCode, err
}

func (p *childProcess) self() (self childSelf, err error) {
	answer, _, err := p.request("GET", "/self", "")
	if err == nil {
		err = json.Unmarshal(answer, &self)
	}
	return self, err
}

// rolling is three servers that are upgraded and downgraded under writes.
type rolling struct {
	t       *testing.T
	servers []*childProcess
	// writing is held by each write, and exclusively while the states are compared.
	writing sync.RWMutex
	mu      sync.Mutex
	// acknowledged are the names of the switches that were set.
	acknowledged []string
	unknown      int
	over         atomic.Bool
	writers      sync.WaitGroup
}

// leader returns the server that leads.
func (r *rolling) leader() (leader *childProcess, self childSelf) {
	r.t.Helper()
	eventually(r.t, "a leader", func() bool {
		for _, p := range r.servers {
			if s, err := p.self(); err == nil && s.Leader {
				leader, self = p, s
				return true
			}
		}
		return false
	})
	return leader, self
}

// lead makes a server lead.
func (r *rolling) lead(p *childProcess) {
	r.t.Helper()
	eventually(r.t, "another leader", func() bool {
		self, err := p.self()
		if err != nil || self.Leader {
			return err == nil
		}
		leader, _ := r.leader()
		_, _, _ = leader.request("POST", "/lead/"+self.ID, "")
		return false
	})
}

// write sets a switch, through whichever server takes it.
func (r *rolling) write(name string) {
	r.writing.RLock()
	defer r.writing.RUnlock()
	body := fmt.Sprintf(`{"Name":%q,"Value":"1"}`, name)
	for i := 0; !r.over.Load(); i++ {
		_, status, err := r.servers[i%len(r.servers)].request("POST", "/apply/switch", body)
		switch status {
		case http.StatusOK:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.acknowledged = append(r.acknowledged, name)
			return
		case 0, http.StatusServiceUnavailable: // It is down, or does not lead: the next one is asked.
			time.Sleep(5 * time.Millisecond)
		case http.StatusGatewayTimeout:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.unknown++
			return
		default:
			r.t.Errorf("write of %s: %v", name, err)
			r.over.Store(true)
		}
	}
}

func (r *rolling) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.acknowledged)
}

// progress waits for more acknowledged writes.
func (r *rolling) progress() {
	r.t.Helper()
	enough := r.count() + 20
	eventually(r.t, "more writes", func() bool { return r.count() >= enough })
}

// same compares the states of all servers, byte for byte.
func (r *rolling) same() {
	r.t.Helper()
	r.writing.Lock()
	defer r.writing.Unlock()
	var states [][]byte
	eventually(r.t, "equal states", func() bool {
		states = nil
		_, leader := r.leader()
		for _, p := range r.servers {
			self, err := p.self()
			if err != nil || self.Index != leader.Index {
				return false
			}
			data, _, err := p.request("GET", "/snapshot", "")
			if err != nil {
				return false
			}
			states = append(states, data)
		}
		return true
	})
	for i, data := range states {
		require.Equal(r.t, string(states[0]), string(data), "the states of the servers 0 and %d", i)
	}
}

// roll restarts a server with a program under writes, and returns once the leader knows the
// lowest feature level of all members, and all states are equal.
func (r *rolling) roll(i int, program string, lowest int) {
	r.t.Helper()
	p := r.servers[i]
	p.end([]os.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
	r.progress()
	p.start(program)
	r.progress()
	eventually(r.t, "the levels are known", func() bool {
		_, self := r.leader()
		return self.Lowest == lowest
	})
	r.same()
}

// TestUpgrade rolls three servers from this feature level to the next one and back, in
// processes of their own and under writes. No server halts and no acknowledged write is
// lost; the states stay equal; a command of the next level is refused until all servers
// know it, and no server goes back once it is in the log.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, next := os.Args[0], filepath.Join(dir, "next.test")
	nextlevel.Go(t, "test", "-c", "-vet=off", "-o", next, "./controller/raft")
	const low, high = state.FeatureLevel, nextlevel.Level

	r := &rolling{t: t}
	var join []string
	for range 3 {
		join = append(join, loopback.Free(t))
	}
	for i := range 3 {
		p := &childProcess{t: t, config: childConfiguration{Dir: filepath.Join(dir, fmt.Sprint("s", i)), Raft: join[i], HTTP: loopback.Free(t), Join: join}}
		p.start([]string{old, old, next}[i])
		r.servers = append(r.servers, p)
	}
	t.Cleanup(func() {
		r.over.Store(true)
		r.writers.Wait()
		for i, p := range r.servers {
			p.end(syscall.SIGKILL)
			if t.Failed() {
				t.Logf("server %d:\n%s", i, p.stderr)
			}
		}
	})
	r.leader()
	for i := range 2 {
		r.writers.Go(func() {
			for n := 0; !r.over.Load(); n++ {
				r.write(fmt.Sprintf("%d/%d", i, n))
				time.Sleep(2 * time.Millisecond)
			}
		})
	}

	// One server is of the next level. It leads, and it proposes nothing that the others do
	// not know; a leader of this level does not know it.
	const note, noted = `{"Name":"0/0","Note":"n"}`, `{"Name":"noted","Value":"1","Note":"n"}`
	refused := func(by *childProcess, reason string) {
		t.Helper()
		for command, body := range map[string]string{"annotate": note, "switch": noted} {
			eventually(t, "a refusal that contains "+reason, func() bool {
				r.lead(by)
				_, status, err := by.request("POST", "/apply/"+command, body)
				require.NotEqual(t, http.StatusOK, status, "%s was applied", command)
				return err != nil && strings.Contains(err.Error(), reason) && !strings.Contains(err.Error(), "not reached yet")
			})
		}
	}
	r.progress()
	refused(r.servers[2], fmt.Sprintf("not all servers have feature level %d: ", high))
	r.same()
	refused(r.servers[0], "unknown")
	r.same()

	// It goes back. All go up, back, and up again.
	up := func() {
		for i := range 3 {
			r.roll(i, next, []int{low, low, high}[i])
		}
	}
	r.roll(2, old, low)
	up()
	for i := range 3 {
		r.roll(i, old, low)
	}
	up()

	// All know the new command, and the new field.
	for command, body := range map[string]string{"annotate": note, "switch": noted} {
		eventually(t, command, func() bool {
			leader, _ := r.leader()
			_, _, err := leader.request("POST", "/apply/"+command, body)
			return err == nil
		})
	}
	r.same()

	// No server goes back now: it stops and reports why, and the others go on.
	p := r.servers[1]
	p.end(syscall.SIGTERM)
	p.start(old)
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatal("a server of the old level runs with the state of the next one")
	}
	require.Contains(t, p.stderr.String(), fmt.Sprintf("needs feature level %d", high))
	r.progress()
	p.start(next)
	r.progress()
	r.same()

	// No server ended by itself, and every server has every acknowledged write.
	r.over.Store(true)
	r.writers.Wait()
	r.same()
	for _, p := range r.servers {
		data, _, err := p.request("GET", "/snapshot", "")
		require.NoError(t, err)
		_, err = state.Inspect(bytes.NewReader(data), low)
		require.ErrorIs(t, err, state.ErrSnapshotNewer)
		data, _, err = p.request("GET", "/switches", "")
		require.NoError(t, err)
		var switches []state.Switch
		require.NoError(t, json.Unmarshal(data, &switches))
		values := map[string]string{}
		for _, s := range switches {
			values[s.Name] = s.Value
		}
		for _, name := range r.acknowledged {
			require.Equal(t, "1", values[name], "acknowledged write %s", name)
		}
	}
	t.Logf("%d writes acknowledged, %d of unknown outcome", len(r.acknowledged), r.unknown)
}
