//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
	"remuda/jobs"
)

// tokenWitness looks at Consul's catalog all the time: the largest token of a replica only grows.
type tokenWitness struct {
	mu   sync.Mutex
	most map[string]replica.Token
	bad  []string
}

func watchTokens(t *testing.T, d *dev) *tokenWitness {
	w := &tokenWitness{most: map[string]replica.Token{}}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			services, _, err := d.consul.Catalog().Service(replica.ServiceName, "", nil)
			if err == nil {
				w.look(func(saw func(string, replica.Token)) {
					for _, s := range services {
						token, err := replica.ParseToken(s.ServiceMeta["token"])
						if err != nil {
							token = replica.Token{}
						}
						saw(s.ServiceMeta["model"]+":"+s.ServiceMeta["variant"]+":"+s.ServiceMeta["replica"], token)
					}
				})
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return w
}

func (w *tokenWitness) look(all func(saw func(string, replica.Token))) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := map[string]replica.Token{}
	all(func(name string, token replica.Token) {
		if token.Compare(now[name]) > 0 {
			now[name] = token
		}
	})
	for name, token := range now {
		if token.Compare(w.most[name]) < 0 {
			w.bad = append(w.bad, fmt.Sprintf("%s: %s after %s", name, token, w.most[name]))
			continue
		}
		w.most[name] = token
	}
}

func (w *tokenWitness) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(t, w.bad, "tokens that went back")
	require.NotEmpty(t, w.most)
}

// TestPairsMove shares one cluster of two nodes, on which pairs fail over, move and are hit by faults.
// All the time no token in Consul goes back. The long form has pairs on 1, 2 and 4 GPUs.
func TestPairsMove(t *testing.T) {
	t.Parallel()
	states := filepath.Join(t.TempDir(), "gpus.json")
	f := newFleet(t, 1, func(o *devcluster.Options) {
		o.Nodes, o.GPUs = 2, long.Pick(2, 4)
		set(o, "nomad-client", fmt.Sprintf("plugin \"remuda-device\" {\n  config {\n    state_file = %q\n    fingerprint_period = \"500ms\"\n  }\n}\n", states))
	})
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(jobs.Failover), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "paced.nomad.hcl"), []byte(stamped(t, paced(t, jobs.Failover, 50))), 0o600))
	w := watchTokens(t, f.dev)
	parts := []part[*fleet]{{"there and back", thereAndBack}}
	sizes := []int{2}
	if long.Enabled() {
		sizes = []int{1, 2, 4}
	}
	for _, gpus := range sizes {
		parts = append(parts, faultsOfPair(gpus, states)...)
	}
	inTurn(t, f, f.use, parts)
	w.check(t)
}

// thereAndBack: two pairs, one of which shares its weights, fail over twice and then get a new allocation,
// a new job, or a place on the other node and back. Each time both are HOT, routed and answer within 10 s.
func thereAndBack(t *testing.T, f *fleet) {
	for name, gms := range map[string]string{"shared": "auto", "own": ""} {
		path := filepath.Join(f.dir, name+".model.hcl")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  replicas = 1
  max      = 2
  failover = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    cost    = 1
    slots   = 16
    job     = "failover.nomad.hcl"
    vars    = { weights = "32MiB", gms = %q }
  }
}
`, name, gms), 0o600))
		f.remuda("model", "apply", "-detach", path)
	}
	models := []string{"shared", "own"}
	failover := func(m string) {
		t.Helper()
		old := f.engine(m)
		kill9(t, f.enginePID(old.HostPort()))
		eventually(t, time.Minute, "the failover of "+m, func() error {
			now, err := f.passing(m)
			if err == nil && (len(now) != 1 || now[0].Token.Compare(old.Token) <= 0) {
				err = fmt.Errorf("Consul has %+v", now)
			}
			return err
		})
	}
	drained := ""
	drain := func() {
		from := f.only("shared").Node
		if drained != "" {
			f.undrained(f.nodeID(drained))
			f.usable(drained)
		}
		drained = from
		f.command("nomad", "node", "drain", "-enable", "-yes", "-detach", "-deadline", "2m", f.nodeID(from))
	}
	for _, m := range models {
		f.asked(m, "placed")
		f.hot(m, 1)
	}
	var took []time.Duration
	for _, life := range []struct {
		name string
		end  func()
	}{
		{"nomad alloc stop", func() {
			for _, m := range models {
				alloc, _, err := f.nomad.Allocations().Info(f.allocOf(f.only(m).Name).ID, nil)
				require.NoError(t, err)
				_, err = f.nomad.Allocations().Stop(alloc, nil)
				require.NoError(t, err)
			}
		}},
		{"nomad job stop", func() {
			for _, m := range models {
				_, _, err := f.nomad.Jobs().Deregister(f.only(m).Name, false, nil)
				require.NoError(t, err)
			}
		}},
		{"drain", drain},
		{"drain back", drain},
	} {
		for range 2 {
			for _, m := range models {
				failover(m)
			}
		}
		before := map[string]replica.Engine{}
		for _, m := range models {
			f.asked(m, "two failovers")
			f.hot(m, 1)
			before[m] = f.engine(m)
		}
		began := time.Now()
		life.end()
		for _, m := range models {
			eventually(t, 2*time.Minute, m+" after "+life.name, func() error {
				now, err := f.passing(m)
				if err == nil && (len(now) != 1 || now[0].Name == before[m].Name && now[0].Token.Compare(before[m].Token) <= 0) {
					err = fmt.Errorf("Consul has %+v after %+v", now, before[m])
				}
				return err
			})
			f.asked(m, life.name)
			f.hot(m, 1)
			if drained != "" {
				require.NotEqual(t, drained, f.only(m).Node)
			}
		}
		took = append(took, time.Since(began))
		t.Logf("%s: both are HOT, routed and answer after %s", life.name, took[len(took)-1].Round(time.Millisecond))
	}
	f.undrained(f.nodeID(drained))
	f.usable(drained)
	f.clear(models...)
	slices.Sort(took)
	require.Less(t, took[(len(took)-1)/2], 10*time.Second, "the median of %v", took)
}

// only returns the one replica of a model.
func (f *fleet) only(model string) (r api.Replica) {
	f.t.Helper()
	eventually(f.t, time.Minute, "the one replica of "+model, func() error {
		replicas, err := f.replicas(model)
		if err == nil && len(replicas) != 1 {
			err = fmt.Errorf("%d replicas", len(replicas))
		}
		for _, one := range replicas {
			r = one
		}
		return err
	})
	return r
}

// enginePID finds the simulated engine that listens there.
func (d *dev) enginePID(address string) int {
	d.t.Helper()
	for _, p := range enginesRunning(d) {
		if number, command, _ := strings.Cut(p, " "); strings.Contains(command, " -listen "+address+" ") {
			pid, err := strconv.Atoi(number)
			require.NoError(d.t, err)
			return pid
		}
	}
	d.t.Fatalf("no engine listens at %s: %q", address, enginesRunning(d))
	return 0
}
