//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// startNomad starts a Nomad agent of the cluster with a config of its own; name is that of
// its files. It ends with the test.
func (f *fleet) startNomad(name, config string) *exec.Cmd {
	t := f.t
	t.Helper()
	path := filepath.Join(f.info.DataDir, "config", name+".hcl")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	log, err := os.Create(filepath.Join(f.info.DataDir, "logs", name+".log"))
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command(toolPath(t, "nomad"), "agent", "-config", path)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary(t, "remuda"))+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT) // a test may have stopped it
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	})
	return cmd
}

// secondNode starts one more Nomad client with GPUs of its own, and returns its process.
func (f *fleet) secondNode() (pid int) {
	t := f.t
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.info.DataDir, "config", "nomad-client.hcl"))
	require.NoError(t, err)
	config := string(raw)
	change := func(pattern, with string) {
		t.Helper()
		re := regexp.MustCompile(pattern)
		require.True(t, re.MatchString(config), "no %s in:\n%s", pattern, config)
		config = re.ReplaceAllString(config, with)
	}
	dir := filepath.Join(f.info.DataDir, "nomad-2")
	change(`(?m)^name\s*=.*$`, `name = "second"`)
	change(`(?m)^data_dir\s*=.*$`, fmt.Sprintf("data_dir = %q", dir))
	change(`alloc_mounts_dir = .*`, fmt.Sprintf("alloc_mounts_dir = %q", filepath.Join(dir, "mounts")))
	for _, name := range []string{"http", "rpc", "serf"} {
		_, port, _ := strings.Cut(freePortOn(t, "127.0.0.1"), ":")
		config = regexp.MustCompile(`(?m)(^\s*`+name+`\s*=\s*)\d+$`).ReplaceAllString(config, "${1}"+port)
		config = regexp.MustCompile(`(?m)(^\s*`+name+`\s*=\s*"127\.0\.0\.1:)\d+`).ReplaceAllString(config, "${1}"+port)
	}
	// No two nodes of this machine must give the same ports to their tasks. A cluster has
	// 200 ports from 21000 on that no other one has: 20 from 31000 on are as much its own.
	match := regexp.MustCompile(`min_dynamic_port\s*=\s*(\d+)`).FindStringSubmatch(config)
	require.NotNil(t, match, config)
	first, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	low := 31000 + (first-21000)/200*20
	change(`min_dynamic_port\s*=\s*\d+`, fmt.Sprintf("min_dynamic_port = %d", low))
	change(`max_dynamic_port\s*=\s*\d+`, fmt.Sprintf("max_dynamic_port = %d", low+19))
	change(`seed\s*= ".*"`, `seed = "second"`)
	t.Cleanup(func() { _ = exec.Command("umount", "-R", filepath.Join(dir, "mounts")).Run() })
	cmd := f.startNomad("nomad-client-2", config)
	t.Cleanup(func() {
		// Its allocations end first, or they would outlive it, and before them the servers,
		// which would bring them back.
		_ = cmd.Process.Signal(syscall.SIGCONT)
		for _, s := range f.servers {
			s.end(syscall.SIGTERM)
		}
		list, _, _ := f.nomad.Jobs().List(nil)
		for _, j := range list {
			_, _, _ = f.nomad.Jobs().Deregister(j.ID, false, nil)
		}
		eventually(t, time.Minute, "the allocations to end", func() error {
			allocs, _, err := f.nomad.Allocations().List(nil)
			for _, a := range allocs {
				if a.NodeName == "second" && (a.ClientStatus == nomadapi.AllocClientStatusRunning || a.ClientStatus == nomadapi.AllocClientStatusPending) {
					err = fmt.Errorf("%s runs", a.ID)
				}
			}
			return err
		})
	})
	return cmd.Process.Pid
}

// on counts the model's HOT replicas by node name.
func (f *fleet) on(model string) (map[string]int, error) {
	st, _, err := f.api.Model(f.t.Context(), model, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, r := range st.Replicas {
		if r.Tier == "HOT" && r.Phase == "running" {
			out[r.NodeName]++
		}
	}
	return out, nil
}

// TestControllerNodes: nodes come, are drained, blink and are lost.
func TestControllerNodes(t *testing.T) {
	f := newFleet(t, 1, "-gpus", "2")
	second := f.secondNode()
	ids := map[string]string{}
	eventually(t, 2*time.Minute, "two nodes", func() error {
		nodes, _, err := f.api.Nodes(t.Context(), api.QueryOptions{})
		for _, n := range nodes {
			if n.Ready && len(n.GPUs) == 2 {
				ids[n.Name] = n.ID
			}
		}
		if err == nil && len(ids) != 2 {
			err = fmt.Errorf("%+v", nodes)
		}
		return err
	})
	pids := map[string]int{"dev": f.info.PIDs["nomad-client"], "second": second}
	// fullest is the node with the most replicas, which is to go, and the other one.
	fullest := func() (victim, other string) {
		where, err := f.on("m")
		require.NoError(f.t, err)
		if where["second"] > where["dev"] {
			return "second", "dev"
		}
		return "dev", "second"
	}
	allOn := func(node, not string, n int) {
		f.t.Helper()
		eventually(f.t, 3*time.Minute, "all replicas on "+node, func() error {
			where, err := f.on("m")
			if err == nil && (where[not] != 0 || where[node] != n) {
				err = fmt.Errorf("%v", where)
			}
			return err
		})
	}
	// A node has four seats.
	f.remuda("model", "apply", f.modelFile("m", 6, nil))
	f.hot("m", 6)
	where, err := f.on("m")
	require.NoError(t, err)
	require.Len(t, where, 2, "%v", where)
	f.remuda("scale", "m", "4")
	f.hot("m", 4)

	t.Run("drained", func(t *testing.T) {
		f.t = t
		victim, other := fullest()
		l := f.load("m", 4)
		l.flows(8)
		f.command("nomad", "node", "drain", "-enable", "-yes", "-detach", "-deadline", "2m", ids[victim])
		allOn(other, victim, 4)
		f.hot("m", 4)
		l.none()
		// There is no room for a fifth, which says so, and comes once there is.
		f.remuda("scale", "-detach", "m", "5")
		eventually(t, time.Minute, "the reason", func() error {
			st, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
			if err == nil && !strings.Contains(st.Why, other) {
				err = fmt.Errorf("%q", st.Why)
			}
			return err
		})
		require.Contains(t, f.decisions("m"), "cannot-place")
		t.Logf("remuda model status m:\n%s", f.remuda("model", "status", "m"))
		f.command("nomad", "node", "drain", "-disable", "-yes", ids[victim])
		f.hot("m", 5)
	})

	t.Run("a blink", func(t *testing.T) {
		f.t = t
		victim, _ := fullest()
		names := f.hot("m", 5)
		before, _ := f.allocations("m")
		require.NoError(t, syscall.Kill(pids[victim], syscall.SIGSTOP))
		eventually(t, 2*time.Minute, "the node to be missed", func() error {
			n, _, err := f.api.Node(t.Context(), victim, api.QueryOptions{})
			if err == nil && n.Node.LostSince.IsZero() {
				err = errors.New("it is not")
			}
			return err
		})
		require.NoError(t, syscall.Kill(pids[victim], syscall.SIGCONT))
		eventually(t, 4*time.Minute, "the node to be back", func() error {
			n, _, err := f.api.Node(t.Context(), victim, api.QueryOptions{})
			if err == nil && (!n.Node.LostSince.IsZero() || !n.Node.Ready) {
				err = fmt.Errorf("%+v", n.Node)
			}
			return err
		})
		require.Equal(t, names, f.hot("m", 5))
		after, _ := f.allocations("m")
		require.Equal(t, before, after, "something was started anew")
	})

	t.Run("lost", func(t *testing.T) {
		f.t = t
		f.remuda("scale", "m", "4")
		names := f.hot("m", 4)
		victim, other := fullest()
		require.NoError(t, syscall.Kill(pids[victim], syscall.SIGSTOP))
		allOn(other, victim, 4)
		n, _, err := f.api.Node(t.Context(), victim, api.QueryOptions{})
		require.NoError(t, err)
		require.True(t, n.Node.Gone)
		t.Logf("decisions: %v", f.decisions("m"))
		// It comes back: what still runs there is stopped, and it is used again.
		require.NoError(t, syscall.Kill(pids[victim], syscall.SIGCONT))
		after := f.hotWithin(5*time.Minute, "m", 4)
		require.False(t, slices.Equal(names, after))
		f.remuda("scale", "m", "6")
		f.hotWithin(5*time.Minute, "m", 6)
	})
	f.t = t
}
