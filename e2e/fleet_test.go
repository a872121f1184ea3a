//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/jobs"
)

// patience is a reconcile block for tests: engines that load in a second need no
// minutes.
const patience = `
reconcile {
  canary_time   = "2s"
  backoff       = "2s"
  settle_time   = "2s"
  place_timeout = "30s"
  node_grace    = "30s"
  serving_grace = "10s"
}
`

// server is one `remuda agent` process, with a relay in front of its Raft port that
// the other servers use.
type server struct {
	f      *fleet
	number int
	// host is where it listens and from where it calls; http is its API's address.
	host, http string
	dir        string
	relay      *relay
	cmd        *exec.Cmd
	done       chan struct{}
}

// fleet is a dev cluster whose controller is replaced by servers of the test's own.
type fleet struct {
	*dev
	t       testing.TB
	dir     string
	servers []*server
	// api asks any of the servers.
	api *api.Client
}

// newFleet starts a cluster with that many controllers. Its models come from model
// files of model.
func newFleet(t testing.TB, controllers int, args ...string) *fleet {
	t.Helper()
	return newFleetWith(t, controllers, patience, args...)
}

// newFleetWith is newFleet with a config for the controllers beyond their addresses.
func newFleetWith(t testing.TB, controllers int, more string, args ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: dataDir(t)}
	idle := filepath.Join(f.dir, "idle.model.hcl")
	require.NoError(t, os.WriteFile(idle, []byte(f.modelText("idle", 0, nil)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "demo.nomad.hcl"), []byte(jobs.Demo), 0o600))
	f.dev = newDev(t, append([]string{"-no-autoscaler", "-model", idle}, args...)...)

	var addresses, join, quoted []string
	for i := range controllers {
		s := &server{f: f, number: i + 1, host: fmt.Sprintf("127.0.0.%d", 11+i), dir: filepath.Join(f.dir, fmt.Sprintf("server-%d", i+1))}
		s.http = freePortOn(t, s.host)
		s.relay = newRelay(t, fmt.Sprintf("127.0.0.%d", 31+i), freePortOn(t, s.host))
		f.servers = append(f.servers, s)
		addresses, quoted = append(addresses, "http://"+s.http), append(quoted, fmt.Sprintf("%q", "http://"+s.http))
		join = append(join, fmt.Sprintf("%q", s.relay.address()))
	}
	// The cluster's own controller goes where there is nothing to do.
	f.rewrite("controller", `nomad \{`, "nomad {\n  namespace = \"elsewhere\"\n")
	f.rewrite("controller", `consul \{`, "consul {\n  service = \"\"\n")
	f.rewrite("gateway", `addresses = \[.*\]`, "addresses = ["+strings.Join(quoted, ", ")+"]")
	if controllers == 1 {
		join = nil
	}
	for _, s := range f.servers {
		require.NoError(t, os.MkdirAll(s.dir, 0o700))
		config := fmt.Sprintf(`data_dir         = %q
bootstrap_expect = %d
join             = [%s]
log_level        = "debug"
raft {
  bind      = %q
  advertise = %q
}
http {
  bind = %q
}
acl {
  enabled = false
}
nomad {
  address = %q
}
consul {
  address = %q
}
`, filepath.Join(s.dir, "data"), controllers, strings.Join(join, ", "), s.relay.target, s.relay.address(), s.http, f.info.Nomad, f.info.Consul)
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, "agent.hcl"), []byte(config+more), 0o600))
		s.start()
		t.Cleanup(func() {
			_ = s.cmd.Process.Signal(syscall.SIGCONT)
			s.end(syscall.SIGTERM)
		})
	}
	var err error
	f.api, err = api.NewClient(api.Config{Addresses: addresses, Timeout: 20 * time.Second})
	require.NoError(t, err)
	t.Cleanup(f.api.Close)
	f.leader()
	kill9(t, f.info.PIDs["controller"], f.info.PIDs["gateway"])
	eventually(t, time.Minute, "the gateway to follow the controller", func() error {
		body, err := fetch(f.info.Gateway + "/metrics")
		if err == nil && !strings.Contains(body, "remuda_gateway_controller_up 1") {
			err = errors.New("remuda_gateway_controller_up is not 1")
		}
		return err
	})
	return f
}

// rewrite changes a daemon's config file; it is read when the daemon is killed.
func (f *fleet) rewrite(daemon, pattern, with string) {
	f.t.Helper()
	path := filepath.Join(f.info.DataDir, "config", daemon+".hcl")
	raw, err := os.ReadFile(path)
	require.NoError(f.t, err)
	re := regexp.MustCompile(pattern)
	require.True(f.t, re.Match(raw), "%s has no %s:\n%s", path, pattern, raw)
	require.NoError(f.t, os.WriteFile(path, []byte(re.ReplaceAllLiteralString(string(raw), with)), 0o600))
}

func freePortOn(t testing.TB, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func fetch(url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

func (s *server) start() {
	t := s.f.t
	t.Helper()
	s.done = make(chan struct{})
	log, err := os.OpenFile(filepath.Join(s.f.info.DataDir, "logs", fmt.Sprintf("server-%d.log", s.number)), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer log.Close()
	s.cmd = exec.Command(binary(t, "remuda"), "agent", "-config", filepath.Join(s.dir, "agent.hcl"))
	s.cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary(t, "remuda"))+":"+os.Getenv("PATH"))
	s.cmd.Stdout, s.cmd.Stderr = log, log
	require.NoError(t, s.cmd.Start())
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(s.cmd, s.done)
}

// end sends a signal and waits for the process to end.
func (s *server) end(sig syscall.Signal) {
	s.f.t.Helper()
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.done:
	case <-time.After(30 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
		s.f.t.Errorf("server %d did not end within 30 s of %s", s.number, sig)
	}
}

// self asks this very server.
func (s *server) self() (api.AgentSelf, error) {
	c, err := api.NewClient(api.Config{Addresses: []string{"http://" + s.http}, Timeout: 5 * time.Second})
	if err != nil {
		return api.AgentSelf{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return c.AgentSelf(ctx)
}

// leader waits until a server leads that the others agree on, and returns it.
func (f *fleet) leader(except ...*server) *server {
	f.t.Helper()
	var leader *server
	eventually(f.t, time.Minute, "a leader", func() error {
		leader = nil
		for _, s := range f.servers {
			if slices.Contains(except, s) {
				continue
			}
			if self, err := s.self(); err == nil && self.Leader {
				leader = s
			}
		}
		if leader == nil {
			return errors.New("there is none")
		}
		return nil
	})
	return leader
}

// modelText is a model file whose replicas are single engines on the simulator.
func (f *fleet) modelText(name string, replicas int, vars map[string]string) string {
	all := map[string]string{"weights": "32MiB"}
	if f.dev != nil {
		all["consul"], all["remuda"] = f.info.Consul, binary(f.t, "remuda")
	}
	for k, v := range vars {
		all[k] = v
	}
	var set []string
	for k, v := range all {
		set = append(set, fmt.Sprintf("%s = %q", k, v))
	}
	slices.Sort(set)
	return fmt.Sprintf(`model %q {
  min      = 0
  max      = 16
  replicas = %d

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    cost    = 1
    slots   = 4
    job     = "demo.nomad.hcl"
    vars    = { %s }
  }
}
`, name, replicas, strings.Join(set, ", "))
}

// modelFile writes a model file and returns its path.
func (f *fleet) modelFile(name string, replicas int, vars map[string]string) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name+".model.hcl")
	require.NoError(f.t, os.WriteFile(path, []byte(f.modelText(name, replicas, vars)), 0o600))
	return path
}

// remuda runs the operator's command and returns what it prints.
func (f *fleet) remuda(args ...string) string {
	f.t.Helper()
	out, err := f.tryRemuda(args...)
	require.NoError(f.t, err, "remuda %s:\n%s", strings.Join(args, " "), out)
	return out
}

func (f *fleet) tryRemuda(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var urls []string
	for _, s := range f.servers {
		urls = append(urls, "http://"+s.http)
	}
	if urls == nil {
		urls = []string{f.info.Controller} // the cluster's own serves
	}
	cmd := exec.CommandContext(ctx, binary(f.t, "remuda"), args...)
	cmd.Env = append(os.Environ(), api.EnvAddress+"="+strings.Join(urls, ","))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// hot waits until exactly n replicas of the model are HOT and nothing else is left or
// on its way, neither here nor in Nomad nor on the nodes' seats, and returns their
// names.
func (f *fleet) hot(model string, n int) []string {
	f.t.Helper()
	return f.hotWithin(2*time.Minute, model, n)
}

func (f *fleet) hotWithin(limit time.Duration, model string, n int) []string {
	f.t.Helper()
	var names []string
	eventually(f.t, limit, fmt.Sprintf("%d HOT replicas of %s", n, model), func() (err error) {
		names, err = f.isHot(model, n)
		return err
	})
	return names
}

func (f *fleet) isHot(model string, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, _, err := f.api.Model(ctx, model, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	if (st.Counts != api.Counts{Hot: n}) || len(st.Replicas) != n {
		return nil, fmt.Errorf("%+v of %d: %s", st.Counts, len(st.Replicas), st.Why)
	}
	var names, seats []string
	for _, r := range st.Replicas {
		names, seats = append(names, r.Name), append(seats, r.Seats...)
		if !r.Current {
			return nil, fmt.Errorf("%s is not what its variant is now", r.Name)
		}
	}
	slices.Sort(names)
	slices.Sort(seats)

	held, err := f.seatsOf(ctx, model)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(held, seats) || len(slices.Compact(slices.Clone(seats))) != len(seats) {
		return nil, fmt.Errorf("the replicas have the seats %v, the nodes say %v", seats, held)
	}
	running, err := f.jobsOf(model)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(running, names) {
		return nil, fmt.Errorf("the replicas are %v, Nomad's jobs %v", names, running)
	}
	engines, err := f.passing(model)
	if err != nil {
		return nil, err
	}
	if len(engines) != n {
		return nil, fmt.Errorf("%d engines are in Consul", len(engines))
	}
	return names, nil
}

// seatsOf lists the seats that the nodes count as the model's.
func (f *fleet) seatsOf(ctx context.Context, model string) ([]string, error) {
	nodes, _, err := f.api.Nodes(ctx, api.QueryOptions{})
	var held []string
	for _, n := range nodes {
		for _, g := range n.GPUs {
			for _, s := range g.Seats {
				if strings.HasPrefix(s.Replica, model+":") {
					held = append(held, s.ID)
				}
			}
		}
	}
	slices.Sort(held)
	return held, err
}

// jobsOf lists the model's jobs in Nomad that have not ended, each as often as it has
// allocations that have not ended, and once where it has none.
func (f *fleet) jobsOf(model string) ([]string, error) {
	list, _, err := f.nomad.Jobs().List(&nomadapi.QueryOptions{Prefix: model + ":"})
	if err != nil {
		return nil, err
	}
	var running []string
	for _, j := range list {
		allocs, _, err := f.nomad.Jobs().Allocations(j.ID, false, nil)
		if err != nil {
			return nil, err
		}
		live := 0
		for _, a := range allocs {
			switch a.ClientStatus {
			case nomadapi.AllocClientStatusPending, nomadapi.AllocClientStatusRunning, nomadapi.AllocClientStatusUnknown:
				live++
			}
		}
		if j.Stop && live == 0 {
			continue
		}
		for range max(live, 1) {
			running = append(running, j.ID)
		}
	}
	slices.Sort(running)
	return running, nil
}

// decisions returns the kinds of the model's newest decisions.
func (f *fleet) decisions(model string) []string {
	f.t.Helper()
	list, _, err := f.api.Decisions(f.t.Context(), api.DecisionFilter{Model: model, Limit: 50}, api.QueryOptions{})
	require.NoError(f.t, err)
	var kinds []string
	for _, d := range list {
		kinds = append(kinds, d.Kind)
	}
	return kinds
}

// load is clients that stream answer after answer.
type load struct {
	f      *fleet
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ok     atomic.Int64
	mu     sync.Mutex
	failed []string
}

func (f *fleet) load(model string, clients int) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{f: f, cancel: cancel}
	for c := range clients {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				prompt := fmt.Sprintf("client %d request %d", c, i)
				// A request is always read to its end.
				got, err := streamChat(context.Background(), f.info.Gateway, model, prompt, 60)
				if err == nil && got.text != exact(model, prompt, 60).Text {
					err = fmt.Errorf("got %q", got.text)
				}
				if err != nil {
					l.mu.Lock()
					l.failed = append(l.failed, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), prompt, err))
					l.mu.Unlock()
					time.Sleep(20 * time.Millisecond)
					continue
				}
				l.ok.Add(1)
			}
		})
	}
	f.t.Cleanup(func() { cancel(); l.wg.Wait() })
	return l
}

// flows waits until more answers have come.
func (l *load) flows(more int64) {
	l.f.t.Helper()
	want := l.ok.Load() + more
	eventually(l.f.t, time.Minute, "answers", func() error {
		if got := l.ok.Load(); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

// none ends the load and requires that no request has failed.
func (l *load) none() {
	l.f.t.Helper()
	l.cancel()
	l.wg.Wait()
	l.f.t.Logf("%d answers", l.ok.Load())
	require.Empty(l.f.t, l.failed)
	require.NotZero(l.f.t, l.ok.Load())
}

// relay passes TCP connections on, unless they come from a host that is cut off.
type relay struct {
	l      net.Listener
	target string
	mu     sync.Mutex
	cut    map[string]bool
	conns  map[net.Conn]string
}

func newRelay(t testing.TB, host, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	r := &relay{l: l, target: target, cut: map[string]bool{}, conns: map[net.Conn]string{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { r.pass(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		for c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
		wg.Wait()
	})
	return r
}

func (r *relay) address() string { return r.l.Addr().String() }

func (r *relay) pass(conn net.Conn) {
	defer conn.Close()
	from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	r.mu.Lock()
	if r.cut[from] {
		r.mu.Unlock()
		return
	}
	r.conns[conn] = from
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.conns, conn)
		r.mu.Unlock()
	}()
	// The server sees whom it talks to, as without a relay.
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	to, err := d.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, conn)
		to.Close()
		conn.Close()
	}()
	_, _ = io.Copy(conn, to)
}

// set cuts a host off, or lets it through again.
func (r *relay) set(host string, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut[host] = cut
	for c, from := range r.conns {
		if cut && from == host {
			c.Close()
		}
	}
}

// partition cuts a server off from all others, in both directions, or ends that.
func (f *fleet) partition(s *server, cut bool) {
	for _, other := range f.servers {
		if other != s {
			other.relay.set(s.host, cut)
			s.relay.set(other.host, cut)
		}
	}
}

// allocations returns the IDs of the model's live allocations by job, and how often
// each job was written.
func (f *fleet) allocations(model string) (ids map[string]string, versions map[string]uint64) {
	f.t.Helper()
	list, _, err := f.nomad.Jobs().List(&nomadapi.QueryOptions{Prefix: model + ":"})
	require.NoError(f.t, err)
	ids, versions = map[string]string{}, map[string]uint64{}
	for _, j := range list {
		job, _, err := f.nomad.Jobs().Info(j.ID, nil)
		if unexpected := (nomadapi.UnexpectedResponseError{}); errors.As(err, &unexpected) && unexpected.StatusCode() == 404 {
			continue // it was stopped and purged meanwhile
		}
		require.NoError(f.t, err)
		allocs, _, err := f.nomad.Jobs().Allocations(j.ID, false, nil)
		require.NoError(f.t, err)
		for _, a := range allocs {
			// Nomad says a second late that one which serves runs.
			if a.ClientStatus == nomadapi.AllocClientStatusRunning || a.ClientStatus == nomadapi.AllocClientStatusPending {
				ids[j.ID] = a.ID
				versions[j.ID] = *job.Version
			}
		}
	}
	return ids, versions
}

// jsonOf reads what a command with -json printed.
func jsonOf[T any](t *testing.T, out string) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(out), &v), out)
	return v
}

// linesWith returns the samples of a metric in Prometheus' text.
func linesWith(body, metric string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(body) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, metric) {
			out[name] = value
		}
	}
	return out
}

func cutDot(s string) (before, after string, ok bool) { return strings.Cut(s, ".") }
