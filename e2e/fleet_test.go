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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/testkit/long"
	"remuda/internal/testkit/loopback"
	"remuda/jobs"
)

// eager is a reconcile block for tests, beside the profile of simulations.
const eager = `
reconcile {
  canary_time = "2s"
  backoff     = "2s"
  node_grace  = "8s"
  gateway_ttl = "6s"
  min_age     = "2s"
}
`

// quick are timeouts of the controller's servers and of Nomad that are shorter than those of production, so that outages that exceed them are short as well. The long
// form of the tests runs without them.
var quick = map[string]string{
	"controller": `
raft {
  heartbeat_timeout    = "500ms"
  election_timeout     = "500ms"
  leader_lease_timeout = "500ms"
}
`,
	"nomad-server": `
server {
  min_heartbeat_ttl = "2s"
  heartbeat_grace   = "4s"
}
`,
}

// quickly gives the cluster the quick timeouts.
func quickly(o *devcluster.Options) {
	if long.Enabled() {
		return
	}
	for daemon, text := range quick {
		set(o, daemon, text)
	}
}

// set merges settings into the config of a daemon.
func set(o *devcluster.Options, daemon, text string) {
	if o.Settings == nil {
		o.Settings = map[string][]string{}
	}
	o.Settings[daemon] = append(o.Settings[daemon], text)
}

// server is one server of the controller. Its Raft port has a relay in front that the other
// servers use, so that a test can cut it off.
type server struct {
	f      *fleet
	number int
	// name is the daemon's, host the address at which it listens for the others and from
	// which it calls them, http the address of its API.
	name, host, http string
	relay            *relay
}

// fleet is a dev cluster for models of the test's own.
type fleet struct {
	*dev
	t       testing.TB
	dir     string
	servers []*server
	// api asks any of the servers, with the token, if there is one.
	api   *api.Client
	token string
}

// newFleet starts a cluster with that many servers of the controller. Its models come from
// model files of modelText.
func newFleet(t testing.TB, controllers int, change func(*devcluster.Options)) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: dataDir(t)}
	idle := filepath.Join(f.dir, "idle.model.hcl")
	require.NoError(t, os.WriteFile(idle, []byte(f.modelText("idle", 0, nil)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "demo.nomad.hcl"), []byte(jobs.Demo), 0o600))
	f.dev = newDev(t, func(o *devcluster.Options) {
		o.Model, o.Controllers, o.GPUs = idle, controllers, 2
		quickly(o)
		if !long.Enabled() {
			// On a busy machine a Nomad client can miss heartbeats for some seconds. Nomad stops
			// the pending allocations of a node that is down.
			set(o, "nomad-server", "server {\n  min_heartbeat_ttl = \"4s\"\n  heartbeat_grace = \"12s\"\n}\n")
		}
		set(o, "controller", "log_level = \"debug\"\n"+eager)
		var join []string
		for i := range controllers {
			s := &server{f: f, number: i + 1}
			s.name = fmt.Sprintf("controller-%d", i+1)
			bind := loopback.Free(t)
			s.host, _, _ = net.SplitHostPort(bind)
			s.relay = newRelay(t, bind)
			f.servers = append(f.servers, s)
			join = append(join, fmt.Sprintf("%q", s.relay.address()))
			set(o, s.name, fmt.Sprintf("raft {\n  bind = %q\n  advertise = %q\n}\n", bind, s.relay.address()))
		}
		if controllers > 1 {
			set(o, "controller", "join = ["+strings.Join(join, ", ")+"]\n")
		}
		f.servers[0].name = "controller" // as the daemon is called
		change(o)
	})
	for i, s := range f.servers {
		s.http = strings.TrimPrefix(f.info.Controllers[i], "http://")
	}
	f.api = f.controller
	f.leader()
	return f
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

// start starts a server that end has ended.
func (s *server) start() {
	s.f.t.Helper()
	require.NoError(s.f.t, s.f.cluster.Start(s.name))
}

// replace sets the program that start starts.
func (s *server) replace(program string) {
	s.f.t.Helper()
	require.NoError(s.f.t, s.f.cluster.Replace(s.name, program))
}

// end ends the server with a signal, and keeps it down.
func (s *server) end(sig syscall.Signal) {
	s.f.t.Helper()
	require.NoError(s.f.t, s.f.cluster.End(s.name, sig))
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
    engine  = "sim"
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

// remuda runs the operator's command and returns what it prints. On a busy machine servers elect a leader
// again at any time: an operator who reads that there is none tries again.
func (f *fleet) remuda(args ...string) string {
	f.t.Helper()
	out, err := f.tryRemuda(args...)
	for until := time.Now().Add(time.Minute); err != nil && strings.Contains(out, "no leader responded within") && time.Now().Before(until); {
		out, err = f.tryRemuda(args...)
	}
	require.NoError(f.t, err, "remuda %s:\n%s", strings.Join(args, " "), out)
	return out
}

func (f *fleet) tryRemuda(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(f.t, "remuda"), args...)
	cmd.Env = append(os.Environ(), api.EnvAddress+"="+strings.Join(f.info.Controllers, ","), api.EnvToken+"="+f.token, "NOMAD_ADDR="+f.info.Nomad, "REMUDA_GATEWAY="+f.info.Gateway)
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
		return nil, fmt.Errorf("%+v of %d: %s", st.Counts, len(st.Replicas), st.StatusDescription)
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
	nodes, _, err := f.api.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{})
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

// relay passes TCP connections on, unless they come from a host that is cut off.
type relay struct {
	l      net.Listener
	target string
	mu     sync.Mutex
	cut    map[string]bool
	conns  map[net.Conn]string
}

// newRelay starts a relay at an address of its own.
func newRelay(t testing.TB, target string) *relay {
	t.Helper()
	l := loopback.Listen(t, loopback.Free(t))
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
