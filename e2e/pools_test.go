//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// cluster is a second Nomad: a server and a client with GPUs of their own, which the
// first knows nothing of.
type cluster struct {
	address string
	nomad   *nomadapi.Client
	server  *exec.Cmd
}

// secondNomad starts it. It has the first one's Consul.
func (f *fleet) secondNomad() *cluster {
	t := f.t
	t.Helper()
	dir := filepath.Join(f.info.DataDir, "nomad-cloud")
	ports := map[string]string{}
	for _, name := range []string{"http", "rpc", "serf", "client-http", "client-rpc"} {
		_, port, _ := strings.Cut(freePortOn(t, "127.0.0.1"), ":")
		ports[name] = port
	}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(f.info.DataDir, "config", name+".hcl"))
		require.NoError(t, err)
		return string(raw)
	}
	port := func(config, name, port string) string {
		config = regexp.MustCompile(`(?m)(^\s*`+name+`\s*=\s*)\d+$`).ReplaceAllString(config, "${1}"+port)
		return regexp.MustCompile(`(?m)(^\s*`+name+`\s*=\s*"127\.0\.0\.1:)\d+`).ReplaceAllString(config, "${1}"+port)
	}
	change := func(config *string, pattern, with string) {
		t.Helper()
		re := regexp.MustCompile(pattern)
		require.True(t, re.MatchString(*config), "no %s in:\n%s", pattern, *config)
		*config = re.ReplaceAllString(*config, with)
	}
	server := read("nomad-server")
	change(&server, `(?m)^name\s*=.*$`, `name = "cloud-server"`)
	change(&server, `(?m)^data_dir\s*=.*$`, fmt.Sprintf("data_dir = %q", filepath.Join(dir, "server")))
	// It is stopped for about as long as a node may be silent. What Nomad makes of such a
	// node when it goes on is not of this test.
	change(&server, `bootstrap_expect\s*= 1`, "bootstrap_expect = 1\n  heartbeat_grace  = \"10m\"")
	// Two regions would find each other through Consul.
	change(&server, `(?m)^region\s*=.*$`, `region = "cloud"`)
	change(&server, `consul \{`, "consul {\n  server_auto_join = false\n  auto_advertise = false\n")
	for _, name := range []string{"http", "rpc", "serf"} {
		server = port(server, name, ports[name])
	}
	node := read("nomad-client")
	match := regexp.MustCompile(`min_dynamic_port\s*=\s*(\d+)`).FindStringSubmatch(node)
	require.NotNil(t, match, node)
	var first int
	_, err := fmt.Sscanf(match[1], "%d", &first)
	require.NoError(t, err)
	low := 32000 + (first-21000)/200*15 // below the kernel's own, beside those of secondNode
	change(&node, `(?m)^name\s*=.*$`, `name = "cloud"`)
	change(&node, `(?m)^region\s*=.*$`, `region = "cloud"`)
	change(&node, `(?m)^data_dir\s*=.*$`, fmt.Sprintf("data_dir = %q", filepath.Join(dir, "client")))
	change(&node, `alloc_mounts_dir = .*`, fmt.Sprintf("alloc_mounts_dir = %q", filepath.Join(dir, "mounts")))
	change(&node, `servers\s*=\s*\[.*\]`, fmt.Sprintf("servers = [\"127.0.0.1:%s\"]", ports["rpc"]))
	change(&node, `min_dynamic_port\s*=\s*\d+`, fmt.Sprintf("min_dynamic_port = %d", low))
	change(&node, `max_dynamic_port\s*=\s*\d+`, fmt.Sprintf("max_dynamic_port = %d", low+14))
	change(&node, `seed\s*= ".*"`, `seed = "cloud"`)
	change(&node, `consul \{`, "consul {\n  client_auto_join = false\n  auto_advertise = false\n")
	node = port(port(node, "http", ports["client-http"]), "rpc", ports["client-rpc"])

	t.Cleanup(func() { _ = exec.Command("umount", "-R", filepath.Join(dir, "mounts")).Run() })
	c := &cluster{address: "http://127.0.0.1:" + ports["http"]}
	c.server = f.startNomad("nomad-cloud-server", server)
	f.startNomad("nomad-cloud-client", node)
	c.nomad, err = nomadapi.NewClient(&nomadapi.Config{Address: c.address})
	require.NoError(t, err)
	t.Cleanup(func() {
		// Its allocations end first, or they would outlive it, and before them the servers,
		// which would bring them back.
		_ = c.server.Process.Signal(syscall.SIGCONT)
		for _, s := range f.servers {
			s.end(syscall.SIGTERM)
		}
		eventually(t, time.Minute, "the allocations of the second Nomad to end", func() error {
			list, _, err := c.nomad.Jobs().List(nil)
			for _, j := range list {
				if !j.Stop {
					_, _, _ = c.nomad.Jobs().Deregister(j.ID, false, nil)
				}
			}
			if err != nil {
				return err
			}
			allocs, _, err := c.nomad.Allocations().List(nil)
			for _, a := range allocs {
				if a.ClientStatus == nomadapi.AllocClientStatusRunning || a.ClientStatus == nomadapi.AllocClientStatusPending {
					err = fmt.Errorf("%s runs", a.ID)
				}
			}
			return err
		})
	})
	eventually(t, 2*time.Minute, "the second Nomad's node", func() error {
		nodes, _, err := c.nomad.Nodes().List(nil)
		if err == nil && (len(nodes) != 1 || nodes[0].Status != nomadapi.NodeStatusReady) {
			err = errors.New("it is not ready")
		}
		return err
	})
	return c
}

// reconfigure gives the servers another config behind their addresses, one after the
// other.
func (f *fleet) reconfigure(was, is string) {
	f.t.Helper()
	for _, s := range f.servers {
		path := filepath.Join(s.dir, "agent.hcl")
		raw, err := os.ReadFile(path)
		require.NoError(f.t, err)
		require.Contains(f.t, string(raw), was)
		require.NoError(f.t, os.WriteFile(path, []byte(strings.Replace(string(raw), was, is, 1)), 0o600))
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
	nodes, _, err := f.api.Nodes(ctx, api.QueryOptions{})
	pool := map[string]string{}
	for _, n := range nodes {
		pool[n.ID] = n.CapacityPool
	}
	out := map[string]int{}
	for _, r := range st.Replicas {
		if r.Tier == "HOT" && r.Phase == "running" {
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
	f := newFleetWith(t, 1, eager, "-gpus", "2")
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
`, c.address, mode)
	}
	// A model of which one replica fills a GPU: two of its own, two in the cloud.
	f.reconfigure("consul {", block("disabled")+"consul {")
	eventually(t, time.Minute, "the pool's node", func() error {
		nodes, _, err := f.api.Nodes(t.Context(), api.QueryOptions{})
		for _, n := range nodes {
			if n.CapacityPool == "cloud" && n.Ready && len(n.GPUs) == 2 {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("%+v", nodes))
	})

	t.Run("disabled", func(t *testing.T) {
		f.t = t
		f.applyTier(tierModel{name: "x", replicas: 3, detach: true})
		f.remains("x", 2, 0)
		require.Contains(t, f.decisions("x"), "cannot-place")
		_, err := f.tryRemuda("scale", "x", "1", "-pool", "nowhere")
		require.Error(t, err)
		t.Logf("remuda pool list:\n%s", f.remuda("pool", "list"))
	})
	t.Run("manual", func(t *testing.T) {
		f.t = t
		f.reconfigure(block("disabled"), block("manual"))
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
		f.reconfigure(block("manual"), block("upscaling"))
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
		f.reconfigure(block("upscaling"), block("full"))
		l := f.load("x", 4)
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
		require.NoError(t, c.server.Process.Signal(syscall.SIGSTOP))
		eventually(t, time.Minute, "the pool to be missed", func() error {
			out := f.remuda("pool", "list")
			if !strings.Contains(out, "unreachable") {
				return errors.New(out)
			}
			return nil
		})
		// What runs there serves on, and elsewhere everything is as always.
		l := f.load("x", 4)
		l.flows(8)
		f.applyTier(tierModel{name: "small", replicas: 1, memory: "4GiB"})
		f.tiers("small", 1, 0, 0)
		f.remuda("scale", "small", "0")
		f.remains("x", 2, 1)
		l.none()
		require.NoError(t, c.server.Process.Signal(syscall.SIGCONT))
		eventually(t, 5*time.Minute, "the pool to be back", func() error {
			out := f.remuda("pool", "list")
			if strings.Contains(out, "unreachable") {
				return errors.New(out)
			}
			return nil
		})
		f.remains("x", 2, 1)
		f.clear("x", "small")
	})
	f.t = t
}
