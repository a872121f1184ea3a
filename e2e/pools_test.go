//go:build e2e && verify

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
)

// secondNomad starts a second cluster, which the first knows nothing of: its Nomad is the
// capacity in the cloud. Its tasks register in the first one's Consul.
func (f *fleet) secondNomad() *dev {
	t := f.t
	t.Helper()
	idle := filepath.Join(f.dir, "idle.model.hcl")
	return newDev(t, func(o *devcluster.Options) {
		o.Model, o.GPUs = idle, 2
		// The server is stopped for about as long as a node may be silent. What Nomad makes
		// of such a node when it goes on is not of this test. Two regions would find each
		// other through Consul.
		set(o, "nomad-server", "region = \"cloud\"\nserver {\n  heartbeat_grace = \"10m\"\n}\nconsul {\n  server_auto_join = false\n  auto_advertise = false\n}\n")
		set(o, "nomad-client", "region = \"cloud\"\nconsul {\n  client_auto_join = false\n  auto_advertise = false\n}\n")
	})
}

// reconfigure merges settings into the controller's config and restarts it.
func (f *fleet) reconfigure(settings string) {
	f.t.Helper()
	for _, s := range f.servers {
		require.NoError(f.t, devcluster.Overlay(filepath.Join(f.info.DataDir, "config", s.name+".hcl"), settings))
		s.end(syscall.SIGTERM)
		s.start()
	}
	f.leader()
}

// onPools counts the model's HOT replicas by their capacity pools.
func (f *fleet) onPools(model string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, _, err := f.api.Model(ctx, model, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	nodes, _, err := f.api.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{})
	pool := map[string]string{}
	for _, n := range nodes {
		pool[n.ID] = n.CapacityPool
	}
	out := map[string]int{}
	for _, r := range st.Replicas {
		if r.Status == "serving" {
			out[pool[r.Node]]++
		}
	}
	return out, err
}

// spread waits until the model's HOT replicas are so spread over the own capacity and
// the external pool.
func (f *fleet) spread(model string, own, cloud int) {
	f.t.Helper()
	want := map[string]int{}
	for pool, n := range map[string]int{"": own, "cloud": cloud} {
		if n > 0 {
			want[pool] = n
		}
	}
	eventually(f.t, 2*time.Minute, fmt.Sprintf("%d own replicas and %d in the cloud", own, cloud), func() error {
		got, err := f.onPools(model)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("%v: %s", got, f.why(model))
		}
		return err
	})
}

// remains requires the spread to stay for a while.
func (f *fleet) remains(model string, own, cloud int) {
	f.t.Helper()
	f.spread(model, own, cloud)
	until := time.Now().Add(6 * time.Second)
	eventually(f.t, 20*time.Second, "the spread to stay", func() error {
		got, err := f.onPools(model)
		if err != nil {
			return err
		}
		require.Equal(f.t, []int{own, cloud}, []int{got[""], got["cloud"]}, "%s", f.why(model))
		if time.Now().Before(until) {
			return errors.New("not yet over")
		}
		return nil
	})
}

// TestPools: a second Nomad as external capacity, in each management mode.
func TestPools(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(o *devcluster.Options) { o.NoAutoscaler = false })
	c := f.secondNomad()
	block := func(mode string) string {
		return fmt.Sprintf(`pool "cloud" {
  nomad {
    address = %q
    region  = "cloud"
  }
  management = %q
  price      = 3
  batch      = 1
  interval   = "2s"
}
`, c.info.Nomad, mode)
	}
	// A model of which one replica fills a GPU: two of its own, two in the cloud.
	f.reconfigure(block("disabled"))
	eventually(t, time.Minute, "the pool's node", func() error {
		nodes, _, err := f.api.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
		for _, n := range nodes {
			if n.CapacityPool == "cloud" && n.Ready && len(n.GPUs) == 2 {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("%+v", nodes))
	})

	t.Run("disabled", func(t *testing.T) {
		f.t = t
		f.applyTier(tierModel{name: "x", replicas: 3, detach: true, vars: fmt.Sprintf(", consul = %q", f.info.Consul)})
		f.remains("x", 2, 0)
		require.Contains(t, f.decisions("x"), "cannot-place")
		_, err := f.tryRemuda("scale", "x", "1", "-pool", "nowhere")
		require.Error(t, err)
		t.Logf("remuda pool list:\n%s", f.remuda("pool", "list"))
	})
	t.Run("manual", func(t *testing.T) {
		f.t = t
		f.reconfigure(block("manual"))
		f.remains("x", 2, 0)
		f.remuda("scale", "-detach", "x", "1", "-pool", "cloud")
		f.remains("x", 2, 1)
		require.Equal(t, "", streamed(f, "x", "from anywhere"))
		// Nothing that serves is taken away before another one does; told that fewer are
		// wanted, it goes.
		f.remuda("scale", "-detach", "x", "0", "-pool", "cloud")
		f.remains("x", 2, 1)
		require.Contains(t, f.decisions("x"), "leave-pool")
		f.remuda("scale", "x", "2")
		f.remains("x", 2, 0)
		f.remuda("scale", "-detach", "x", "3")
		f.remains("x", 2, 0)
	})
	t.Run("upscaling", func(t *testing.T) {
		f.t = t
		f.reconfigure(block("upscaling"))
		f.remains("x", 2, 1)
		f.remuda("scale", "x", "4")
		f.spread("x", 2, 2)
		require.Contains(t, f.decisions("x"), "spill")
		// Nobody but people takes anything away there.
		f.remuda("scale", "-detach", "x", "2")
		f.remains("x", 0, 2)
	})
	t.Run("full", func(t *testing.T) {
		f.t = t
		f.remuda("scale", "-detach", "x", "4")
		f.spread("x", 2, 2)
		f.reconfigure(block("full"))
		l := f.load("x", 4, 60)
		l.flows(8)
		f.remuda("scale", "-detach", "x", "2")
		f.remains("x", 2, 0)
		l.none()
		require.Contains(t, f.decisions("x"), "leave-pool")
	})
	t.Run("unreachable", func(t *testing.T) {
		f.t = t
		f.remuda("scale", "x", "3")
		f.spread("x", 2, 1)
		require.NoError(t, syscall.Kill(c.pid("nomad-server"), syscall.SIGSTOP))
		eventually(t, time.Minute, "the pool to be missed", func() error {
			out := f.remuda("pool", "list")
			if !strings.Contains(out, "lost ") {
				return errors.New(out)
			}
			return nil
		})
		// What runs there serves on, and elsewhere everything is as always.
		l := f.load("x", 4, 60)
		l.flows(8)
		f.applyTier(tierModel{name: "small", replicas: 1, memory: "4GiB"})
		f.tiers("small", 1, 0, 0)
		f.remuda("scale", "small", "0")
		f.remains("x", 2, 1)
		l.none()
		require.NoError(t, syscall.Kill(c.pid("nomad-server"), syscall.SIGCONT))
		eventually(t, 5*time.Minute, "the pool to be back", func() error {
			out := f.remuda("pool", "list")
			if strings.Contains(out, "lost ") {
				return errors.New(out)
			}
			return nil
		})
		f.remains("x", 2, 1)
		f.clear("x", "small")
	})
	t.Run("a policy may neither use a manual pool nor reduce it", func(t *testing.T) {
		f.t = t
		f.reconfigure(block("manual"))
		f.applyTier(tierModel{name: "p", replicas: 1, vars: fmt.Sprintf(", consul = %q", f.info.Consul), more: fmt.Sprintf(`
  scaling {
    strategy            = "remuda-capacity"
    evaluation_interval = %q
    hold                = "6s"
    scale_to_zero       = true
    idle_after          = "10s"
  }`, evaluation())})
		refused := func() int {
			return mentions(t, filepath.Join(f.info.DataDir, "logs", "autoscaler.log"), "unable to scale target")
		}
		before := refused()
		// Each replica has four slots, and the own GPUs have room for two.
		l := f.load("p", 12, 60)
		f.spread("p", 2, 0)
		decisions := filepath.Join(f.info.DataDir, "autoscaler", "capacity.decisions.json")
		eventually(t, 3*time.Minute, "three decisions to want more and ask for nothing", func() error {
			if n := mentions(t, decisions, "but no variant can grow now"); n < 3 {
				return fmt.Errorf("%d: %s", n, f.why("p"))
			}
			return nil
		})
		f.remains("p", 2, 0)
		st, _, err := f.api.Model(t.Context(), "p", api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, 2, st.Model.Target)
		f.remuda("scale", "-detach", "p", "3")
		f.remuda("scale", "-detach", "p", "1", "-pool", "cloud")
		f.remains("p", 2, 1)
		l.flows(5)
		l.none()
		// It wants none now, and takes its own.
		f.spread("p", 0, 1)
		of := mentions(t, decisions, `"options":{"model":"p"`)
		eventually(t, time.Minute, "evaluations for longer than idle_after", func() error {
			if n := mentions(t, decisions, `"options":{"model":"p"`) - of; n < 15 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		f.remains("p", 0, 1)
		require.Equal(t, before, refused(), "orders that the controller refused")
		f.remuda("scale", "-detach", "p", "0", "-pool", "cloud")
		f.spread("p", 0, 0)
		f.clear("p")
	})
	f.t = t
}
