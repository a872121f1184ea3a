//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// thereAndBack: two pairs, one of which shares its weights, fail over and are moved to the other node
// and back. Each time they answer soon.
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
	serve := func(what string) {
		t.Helper()
		began := time.Now()
		for _, m := range models {
			f.asked(m, what)
			f.hot(m, 1)
		}
		t.Logf("%s: both are HOT and answer after %s", what, time.Since(began).Round(time.Millisecond))
	}
	serve("placed")
	failover := func() {
		t.Helper()
		for _, m := range models {
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
	}
	node := func(model string) string {
		replicas, err := f.replicas(model)
		require.NoError(t, err)
		require.Len(t, replicas, 1)
		for _, r := range replicas {
			return r.Node
		}
		return ""
	}
	for round := range 2 {
		failover()
		failover()
		serve("two failovers")
		from := node("shared")
		f.command("nomad", "node", "drain", "-enable", "-yes", "-detach", "-deadline", "2m", f.nodeID(from))
		for _, m := range models {
			eventually(t, 2*time.Minute, m+" on the other node", func() error {
				replicas, err := f.replicas(m)
				if err == nil && len(replicas) != 1 {
					err = fmt.Errorf("%d replicas", len(replicas))
				}
				for _, r := range replicas {
					if err == nil && (r.Node == from || r.Status != "serving") {
						err = fmt.Errorf("%+v", r)
					}
				}
				return err
			})
		}
		serve(fmt.Sprintf("moved %d", round+1))
		f.undrained(f.nodeID(from))
	}
	f.clear(models...)
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
