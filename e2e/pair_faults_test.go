//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/vram"
)

// What an engine of a faultyPair has on each of its GPUs, and all weights together, in MiB.
const (
	pairCache   = 50 << 10
	pairContext = 400
	pairWeights = 64
)

// faultyPair is a failover pair whose engines have a worker on each of its GPUs, on a cluster of two
// nodes with room for it on both. Nothing else runs there.
type faultyPair struct {
	*twins
	model string
	gpus  int
	// version is that of the model file, and states the file that makes simulated GPUs sick.
	version int
	states  string
}

// faultsOfPair are the faults that a pair on so many GPUs survives.
func faultsOfPair(gpus int, states string) (parts []part[*fleet]) {
	p := &faultyPair{model: fmt.Sprint("pair-", gpus), gpus: gpus, states: states}
	for _, fault := range []struct {
		name string
		test func(*faultyPair)
	}{
		{"both engines die", (*faultyPair).bothDie},
		{"both engines and the memory service die", (*faultyPair).bothDieWithTheirWeights},
		{"the engine answers for its health and makes no token", (*faultyPair).stuck},
		{"the engine takes more memory than its task may have", (*faultyPair).outOfMemory},
		{"two failovers within a second", (*faultyPair).twice},
		{"a failover in a rollout", (*faultyPair).whileRolled},
		{"a rollout without a spare place", (*faultyPair).rolledInPlace},
		{"a failover in an eviction", (*faultyPair).whileEvicted},
		{"a failover in a drain of the node", (*faultyPair).whileDrained},
		{"a failover on a sick GPU", (*faultyPair).whileSick},
		{"the node is lost and comes back", (*faultyPair).nodeLost},
		{"nothing is left", (*faultyPair).leavesNothing},
	} {
		parts = append(parts, part[*fleet]{fmt.Sprint(gpus, " GPUs, ", fault.name), func(t *testing.T, f *fleet) {
			p.twins = &twins{f}
			if p.version == 0 {
				p.apply()
				p.whole()
			}
			fault.test(p)
		}})
	}
	return parts
}

// apply applies the next version of the pair, with more blocks in the model file.
func (p *faultyPair) apply(more ...string) {
	p.t.Helper()
	p.version++
	path := filepath.Join(p.dir, p.model+".model.hcl")
	require.NoError(p.t, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  replicas = 1
  max      = 1
  failover = true
%s
  variant "sim" {
    gpu {
      count = %d
    }

    weights = "%dMiB"
    memory  = "60GiB"
    cost    = 1
    slots   = 16
    engine  = "sim"
    job     = "paced.nomad.hcl"
    vars = {
      weights        = "%dMiB"
      workers        = true
      kv_memory      = "%dMiB"
      context_memory = "%dMiB"
      init_delay     = "%dms"
    }
  }
}
`, p.model, strings.Join(more, "\n"), p.gpus, pairWeights, pairWeights, pairCache, pairContext, p.version), 0o600))
	p.remuda("model", "apply", "-detach", path)
}

// whole waits until the pair is HOT, one engine is registered, the other one stands by and a request
// is answered; until no other engine and shim run; and until each of its GPUs holds two contexts, one
// KV cache and the weights. It returns the replica.
func (p *faultyPair) whole() api.Replica {
	p.t.Helper()
	began := time.Now()
	p.asked(p.model, "whole again")
	p.t.Logf("answers after %s", time.Since(began).Round(time.Millisecond))
	name := p.hot(p.model, 1)[0]
	eventually(p.t, time.Minute, "the standby", func() error { return p.standsBy(p.model) })
	p.asked(p.model, "and once more")
	eventually(p.t, 20*time.Second, "two engines with their shims and workers, and nothing else", func() error {
		engines, shims, workers := enginesRunning(p.dev), shimsRunning(p.dev), p.commands(" sim-worker ")
		if len(engines) != 2 || len(shims) != 2 || len(workers) != 2*p.gpus {
			return fmt.Errorf("engines %q, shims %q, workers %q", engines, shims, workers)
		}
		return nil
	})
	replicas, err := p.replicas(p.model)
	require.NoError(p.t, err)
	r := replicas[name]
	require.Len(p.t, gpusOf(r), p.gpus)
	eventually(p.t, 20*time.Second, "the memory as it was", func() error {
		for _, gpu := range gpusOf(r) {
			used, _, err := vram.Used(filepath.Join(p.info.DataDir, "gpus"), gpu)
			if want := int64(pairCache+2*pairContext+pairWeights/p.gpus) << 20; err != nil || used < want || used > want+16<<20 {
				return errors.Join(err, fmt.Errorf("%d bytes in use on %s: must be %d", used, gpu, want))
			}
		}
		return nil
	})
	p.t.Logf("whole again after %s", time.Since(began).Round(time.Millisecond))
	return r
}

// gpusOf are the GPUs on which a replica has seats.
func gpusOf(r api.Replica) []string {
	gpus := map[string]bool{}
	for _, seat := range r.Seats {
		gpu, _, _ := strings.Cut(seat, "#")
		gpus[gpu] = true
	}
	return slices.Sorted(maps.Keys(gpus))
}

// commands lists the processes of the cluster whose command line has part.
func (d *dev) commands(part string) []string {
	return slices.DeleteFunc(processesOf(d.info.DataDir), func(p string) bool { return !strings.Contains(p, part) })
}

// pids are the IDs of processes of processesOf.
func pids(t testing.TB, lists ...[]string) (pids []int) {
	t.Helper()
	for _, p := range slices.Concat(lists...) {
		number, _, _ := strings.Cut(p, " ")
		pid, err := strconv.Atoi(number)
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// gone waits until processes have ended.
func (p *faultyPair) gone(pids ...int) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, "the end of the processes", func() error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("process %d lives", pid)
			}
		}
		return nil
	})
}

// engines are those of the pair, and all is them and their workers.
func (p *faultyPair) engines() []int { return pids(p.t, enginesRunning(p.dev)) }

func (p *faultyPair) all() []int {
	return pids(p.t, enginesRunning(p.dev), p.commands(" sim-worker "))
}

// killServing kills the engine of a replica that serves, and returns it with its workers.
func (p *faultyPair) killServing(name string) (victims []int) {
	p.t.Helper()
	eventually(p.t, time.Minute, "the engine of "+name+" that serves", func() error {
		engines, err := p.passing(p.model)
		for _, e := range engines {
			if e.Name.String() == name {
				pid := p.enginePID(e.HostPort())
				victims = append(childrenOf(p.t, pid), pid)
				kill9(p.t, pid)
				return nil
			}
		}
		return errors.Join(err, errors.New("it is not in Consul"))
	})
	return victims
}

// bothDie: both engines of the pair are killed in one go, and their weights are left.
func (p *faultyPair) bothDie() {
	name := p.hot(p.model, 1)[0]
	token, old := p.engine(p.model).Token, p.all()
	kill9(p.t, p.engines()...)
	p.gone(old...)
	require.Equal(p.t, name, p.whole().Name)
	require.Positive(p.t, p.engine(p.model).Token.Compare(token))
}

// bothDieWithTheirWeights: the memory service goes as well, with its keeper.
func (p *faultyPair) bothDieWithTheirWeights() {
	name := p.hot(p.model, 1)[0]
	token, old := p.engine(p.model).Token, p.all()
	service := func() []int { return pids(p.t, p.commands(serviceCommand), p.commands(keeperCommand)) } // the service ends with its keeper
	services := service()
	kill9(p.t, slices.Concat(p.engines(), services)...)
	p.gone(slices.Concat(old, services)...)
	eventually(p.t, 20*time.Second, "the memory service", func() error {
		if now := service(); len(now) != len(services) {
			return fmt.Errorf("processes %v after %v", now, services)
		}
		return nil
	})
	require.Equal(p.t, name, p.whole().Name)
	require.Positive(p.t, p.engine(p.model).Token.Compare(token))
}

// stuck: a collective operation of the engine hangs, as one on several GPUs can.
func (p *faultyPair) stuck() {
	name := p.hot(p.model, 1)[0]
	first := p.engine(p.model)
	pid := p.enginePID(first.HostPort())
	victims := append(childrenOf(p.t, pid), pid)
	p.fault("http://"+first.HostPort(), map[string]any{"hang": "generation"})
	p.t.Logf("answers %s after a request that does not go on", p.asked(p.model, "stuck").Round(time.Millisecond))
	p.gone(victims...)
	require.Equal(p.t, name, p.whole().Name)
	require.Positive(p.t, p.engine(p.model).Token.Compare(first.Token))
}

// outOfMemory: the kernel ends the engine, and the replica's status says why.
func (p *faultyPair) outOfMemory() {
	name := p.hot(p.model, 1)[0]
	first := p.engine(p.model)
	pid := p.enginePID(first.HostPort())
	victims := append(childrenOf(p.t, pid), pid)
	p.fault("http://"+first.HostPort(), map[string]any{"take_bytes": 2 << 30}) // the task has 1 GiB
	p.gone(victims...)
	require.Equal(p.t, name, p.whole().Name)
	require.Positive(p.t, p.engine(p.model).Token.Compare(first.Token))
	eventually(p.t, 20*time.Second, "the cause in the replica's status", func() error {
		if status := p.remuda("replica", "status", name); !strings.Contains(status, "(exited: engine exited: signal: killed: out of memory: ") {
			return errors.New(status)
		}
		return nil
	})
}

// twice: the engine that takes over is killed as soon as it serves, or a second after the first one
// at the latest.
func (p *faultyPair) twice() {
	name := p.hot(p.model, 1)[0]
	first, old, engines := p.engine(p.model), p.all(), p.engines()
	pid := p.enginePID(first.HostPort())
	kill9(p.t, pid)
	began, serves := time.Now(), false
	for !serves && time.Since(began) < 900*time.Millisecond {
		now, err := p.passing(p.model)
		serves = err == nil && len(now) > 0 && now[0].Token.Compare(first.Token) > 0
	}
	kill9(p.t, slices.DeleteFunc(engines, func(other int) bool { return other == pid })...)
	p.t.Logf("the other engine died %s later, and served: %t", time.Since(began).Round(time.Millisecond), serves)
	p.gone(old...)
	require.Equal(p.t, name, p.whole().Name)
	require.Positive(p.t, p.engine(p.model).Token.Compare(first.Token))
}

// whileRolled: the old replica fails over while its successor starts, and the successor while it is on
// trial.
func (p *faultyPair) whileRolled() {
	old := p.whole()
	l := p.load(p.model, 2, 20)
	l.flows(2)
	p.apply()
	var next string
	eventually(p.t, time.Minute, "the successor", func() error {
		replicas, err := p.replicas(p.model)
		for name := range replicas {
			if name != old.Name {
				next = name
				return nil
			}
		}
		return errors.Join(err, errors.New("there is none"))
	})
	p.gone(p.killServing(old.Name)...)
	// A canary that stops to serve is rolled back, so its standby must be there.
	eventually(p.t, time.Minute, "the successor's standby", func() error {
		replicas, err := p.replicas(p.model)
		if pair := replicas[next].Pair; err == nil && (pair == nil || pair.Serves == "" || pair.Degraded != "") {
			err = fmt.Errorf("it is %q: %+v", replicas[next].Status, pair)
		}
		return err
	})
	p.gone(p.killServing(next)...)
	eventually(p.t, time.Minute, "the old replica to be gone", func() error {
		replicas, err := p.replicas(p.model)
		if _, there := replicas[old.Name]; err == nil && there {
			err = fmt.Errorf("it is %s", replicas[old.Name].Status)
		}
		return err
	})
	r := p.whole()
	require.Equal(p.t, next, r.Name)
	require.Equal(p.t, p.version, r.Version)
	l.flows(2)
	_, _ = l.end()
}

// rolledInPlace: both engines of the pair end before its successor starts in their place, and a request waits
// meanwhile.
func (p *faultyPair) rolledInPlace() {
	old := p.whole()
	nodes, _, err := p.api.Nodes(p.t.Context(), api.NodeFilter{}, api.QueryOptions{})
	require.NoError(p.t, err)
	for _, n := range nodes {
		for _, g := range n.GPUs {
			if slices.Contains(gpusOf(old), g.UUID) {
				continue
			}
			p.remuda("node", "cordon", g.UUID, "-reason", "no spare place")
			defer p.remuda("node", "uncordon", g.UUID)
		}
	}
	p.apply("  update {\n    surge = 0\n  }\n")
	eventually(p.t, time.Minute, "the end of the old pair", func() error {
		replicas, err := p.replicas(p.model)
		if err == nil && replicas[old.Name].Status == "serving" {
			err = errors.New(p.why(p.model))
		}
		return err
	})
	p.t.Logf("a request that came when the old pair made way was answered after %s", p.asked(p.model, "in the gap").Round(time.Millisecond))
	r := p.whole()
	require.NotEqual(p.t, old.Name, r.Name)
	require.Equal(p.t, []any{p.version, gpusOf(old)}, []any{r.Version, gpusOf(r)})
}

// whileEvicted: the engine that drains before it sleeps dies, and then one that falls asleep. The other
// engine has the weights, so the pair is WARM, and stays so when Nomad starts the dead engine's task again.
func (p *faultyPair) whileEvicted() {
	for status, fault := range map[string]map[string]any{"draining": nil, "sleeping": {"sleep": "slow"}} {
		r := p.whole()
		if fault != nil {
			p.fault(p.engineOf(r.Name), fault)
		}
		streams := p.streams(r.Name)
		serves := p.enginePID(strings.TrimPrefix(p.engineOf(r.Name), "http://"))
		victims := append(childrenOf(p.t, serves), serves)
		p.remuda("evict", r.Name, "-to", "warm")
		if fault != nil {
			streams.Wait()
		}
		p.reaches(r.Name, status)
		kill9(p.t, serves)
		p.gone(victims...)
		streams.Wait()
		p.reaches(r.Name, "warm")
		eventually(p.t, time.Minute, "both shims", func() error {
			if shims := shimsRunning(p.dev); len(shims) != 2 {
				return fmt.Errorf("shims %q", shims)
			}
			return nil
		})
		p.stays(r.Name, "warm", 5*time.Second)
		p.t.Logf("killed while %s: answers %s after the request that wakes it", status, p.asked(p.model, "wake").Round(time.Millisecond))
		p.reaches(r.Name, "serving")
	}
	p.whole()
}

// streams has a replica work on an answer of 4 s.
func (p *faultyPair) streams(name string) *sync.WaitGroup {
	p.t.Helper()
	inFlight := func() (int, error) {
		replicas, err := p.replicas(p.model)
		if l := replicas[name].Load; l != nil {
			return l.InFlight, err
		}
		return 0, err
	}
	eventually(p.t, time.Minute, "the requests before it to be over", func() error {
		n, err := inFlight()
		if err == nil && n > 0 {
			err = fmt.Errorf("%d are in flight", n)
		}
		return err
	})
	var done sync.WaitGroup
	ended := make(chan error, 1)
	done.Go(func() {
		// Models differ in where their answers to a prompt end.
		body := fmt.Appendf(nil, `{"model":%q,"stream":true,"max_tokens":200,"ignore_eos":true,"messages":[{"role":"user","content":"a long one"}]}`, p.model)
		_, err := streamBody(context.Background(), p.info.Gateway, body, func(time.Time) {})
		ended <- err
	})
	eventually(p.t, time.Minute, "the request to be seen", func() error {
		n, err := inFlight()
		if err == nil && n == 0 {
			select {
			case err := <-ended:
				p.t.Fatalf("the request ended before it was seen at %s: %v", name, err)
			default:
			}
			err = errors.New("it is not")
		}
		return err
	})
	return &done
}

func (p *faultyPair) reaches(name, status string) {
	p.t.Helper()
	eventually(p.t, time.Minute, name+" to be "+status, func() error {
		replicas, err := p.replicas(p.model)
		if err == nil && replicas[name].Status != status {
			err = fmt.Errorf("it is %q", replicas[name].Status)
		}
		return err
	})
}

// stays checks that a replica keeps its status for as long as the controller may take to learn more.
func (p *faultyPair) stays(name, status string, long time.Duration) {
	p.t.Helper()
	for began := time.Now(); time.Since(began) < long; time.Sleep(100 * time.Millisecond) {
		replicas, err := p.replicas(p.model)
		require.NoError(p.t, err)
		require.Equal(p.t, status, replicas[name].Status)
	}
}

// whileDrained: the pair fails over while its node is drained, and serves on the other one.
func (p *faultyPair) whileDrained() {
	old := p.whole()
	streams := p.streams(old.Name)
	p.command("nomad", "node", "drain", "-enable", "-yes", "-detach", "-deadline", "2m", old.Node)
	victims := p.killServing(old.Name)
	streams.Wait()
	p.movedFrom(old)
	p.gone(victims...)
	require.NotEqual(p.t, old.Node, p.whole().Node)
	p.undrained(old.Node)
	p.usable(old.NodeName)
}

// movedFrom waits until another pair serves.
func (p *faultyPair) movedFrom(old api.Replica) {
	p.t.Helper()
	eventually(p.t, 2*time.Minute, "another pair", func() error {
		names, err := p.isHot(p.model, 1)
		if err == nil && names[0] == old.Name {
			err = errors.New(p.why(p.model))
		}
		return err
	})
}

// whileSick: a GPU of the pair has an XID, and the pair fails over there before it serves elsewhere.
func (p *faultyPair) whileSick() {
	const xid = "XID 94: contained memory error"
	old := p.whole()
	sick := gpusOf(old)[0]
	require.NoError(p.t, os.WriteFile(p.states, fmt.Appendf(nil, `{"gpus": {%q: {"unhealthy": %q}}}`, sick, xid), 0o600))
	eventually(p.t, time.Minute, "the controller to see it", func() error {
		replicas, err := p.replicas(p.model)
		if err == nil && !strings.Contains(replicas[old.Name].OutOfUse, xid) {
			err = fmt.Errorf("the replica is %+v", replicas[old.Name])
		}
		return err
	})
	victims := p.killServing(old.Name)
	p.movedFrom(old)
	p.gone(victims...)
	require.NotContains(p.t, gpusOf(p.whole()), sick)
	list, _, err := p.api.Decisions(p.t.Context(), api.DecisionFilter{Model: p.model, Limit: 50}, api.QueryOptions{})
	require.NoError(p.t, err)
	require.True(p.t, slices.ContainsFunc(list, func(d api.Decision) bool {
		return d.Kind == "move-away" && strings.Contains(d.Reason, sick) && strings.Contains(d.Reason, xid)
	}), "no decision names the GPU and its fault: %v", list)
	require.NoError(p.t, os.Remove(p.states))
}

// nodeLost: everything on the pair's node stops without a word until the node is given up. The pair serves on
// the other one. What goes on afterwards on the lost node ends, and makes no event of any answer.
func (p *faultyPair) nodeLost() {
	old := p.whole()
	serves, engines := p.engine(p.model), p.all()
	frozen := append(p.processesOn(old.NodeName), p.client(old.NodeName))
	thaw := func() {
		for _, pid := range frozen {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	p.t.Cleanup(thaw)
	for _, pid := range frozen {
		require.NoError(p.t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	began := time.Now()
	eventually(p.t, 2*time.Minute, "another pair", func() error { // the lost one's job stays in Nomad
		replicas, err := p.replicas(p.model)
		for _, r := range replicas {
			if err == nil && r.Status == "serving" && r.Node != old.Node {
				return nil
			}
		}
		return errors.Join(err, errors.New(p.why(p.model)))
	})
	p.t.Logf("another pair serves after %s", time.Since(began).Round(time.Millisecond))
	l := p.load(p.model, 2, 20)
	l.flows(2)
	thaw()
	p.gone(engines...)
	l.flows(2)
	_, _ = l.end()
	require.NotEmpty(p.t, l.makers)
	for _, pid := range engines {
		require.NotContains(p.t, l.makers, strconv.Itoa(pid))
	}
	r := p.whole()
	require.NotEqual(p.t, old.Node, r.Node)
	now, err := p.passing(p.model)
	require.NoError(p.t, err)
	require.Len(p.t, now, 1)
	require.NotEqual(p.t, serves.Name, now[0].Name)
	p.usable(old.NodeName)
}

// usable waits until replicas can be placed on a node again.
func (f *fleet) usable(node string) {
	f.t.Helper()
	eventually(f.t, time.Minute, "the node", func() error {
		n, _, err := f.api.Node(f.t.Context(), node, api.QueryOptions{})
		if err == nil && (n.Node.Unusable != "" || n.Node.Draining || !n.Node.DownSince.IsZero()) {
			err = fmt.Errorf("it is %+v", n.Node)
		}
		return err
	})
}

// leavesNothing: the pair ends, and no GPU of the cluster has anything in use.
func (p *faultyPair) leavesNothing() {
	p.whole()
	p.clear(p.model)
	eventually(p.t, time.Minute, "free GPUs and no process", func() error {
		if left := slices.Concat(enginesRunning(p.dev), p.commands(" sim-worker "), shimsRunning(p.dev)); len(left) > 0 {
			return fmt.Errorf("processes %q are left", left)
		}
		nodes, _, err := p.api.Nodes(p.t.Context(), api.NodeFilter{}, api.QueryOptions{})
		for _, n := range nodes {
			for _, g := range n.GPUs {
				used, _, err := vram.Used(filepath.Join(p.info.DataDir, "gpus"), g.UUID)
				if err != nil || used > 0 || g.FreeMemory != g.Memory || g.Cordoned {
					return errors.Join(err, fmt.Errorf("%s: %d bytes in use, by the ledger %d of %d free, cordoned %t", g.UUID, used, g.FreeMemory, g.Memory, g.Cordoned))
				}
			}
		}
		return err
	})
}
