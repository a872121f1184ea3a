package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/testkit/agenttest"
	"remuda/internal/testkit/proclog"
)

// asProgram in the environment has the test binary be remuda.
const asProgram = "REMUDA_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	// A keeper in this process starts it as the GPU memory service.
	if os.Getenv(asProgram) != "" || len(os.Args) > 1 && (os.Args[1] == gmsServeVerbName || os.Args[1] == simWorkerVerbName) {
		main()
	}
	// What the user's shell has must not reach the tests.
	for _, name := range []string{api.EnvAddress, api.EnvToken, api.EnvCACert, api.EnvClientCert, api.EnvClientKey} {
		os.Unsetenv(name)
	}
	os.Exit(m.Run())
}

// process runs an agent for the world in a process of its own.
func (w *world) process(args ...string) (*running, *exec.Cmd) {
	w.t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"agent", "-dev", "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0", "-nomad", w.nomad.URL, "-consul", w.consul.Addr()}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	errs := &proclog.Buffer{}
	cmd.Stderr = errs
	stdout, err := cmd.StdoutPipe()
	require.NoError(w.t, err)
	require.NoError(w.t, cmd.Start())
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(w.t, err, "%s", errs)
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "controller listening on ")
	require.True(w.t, ok, line)
	return &running{t: w.t, url: url, err: errs}, cmd
}

// TestKilledAgentKeepsModels: what was acknowledged is there after kill -9.
func TestKilledAgentKeepsModels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	args := []string{"-data-dir", dir}
	first, cmd := w.process(args...)
	first.ok("model", "apply", writeModel(t, "m", "  max = 1\n  replicas = 1\n"+variant("h100", "20GiB")))
	var before []api.Replica
	first.json(&before, "replica", "list")
	require.Len(t, before, 1)

	got := remuda(t, append([]string{"agent", "-dev", "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0"}, args...)...)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "another process has the file open")

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	again, cmd := w.process(args...)
	var after []api.Replica
	again.json(&after, "replica", "list")
	require.Len(t, after, 1)
	require.Equal(t, before[0].Name, after[0].Name)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "it ends well when it is told to")
	require.DirExists(t, dir)

	third := w.dev(args...)
	require.Contains(t, third.ok("model", "list"), "running")
}

// TestDevLeavesNothing in the directory for temporary files, nor in Consul.
func TestDevLeavesNothing(t *testing.T) {
	w := newWorld(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	r := w.dev()
	r.eventually("the announcement", func() bool {
		for _, s := range w.consul.Services() {
			if s.Name == "remuda-controller" {
				return s.Check.HTTP == r.url+"/ready"
			}
		}
		return false
	})
	require.Equal(t, 0, r.stop())
	require.Empty(t, w.consul.Services())
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestAgentWithoutNomadAndConsul serves its API, and says what it lacks.
func TestAgentWithoutNomadAndConsul(t *testing.T) {
	r := startAgent(t, "-dev", "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0", "-nomad", "http://127.0.0.1:1", "-consul", "127.0.0.1:1")
	var got result
	r.eventually("health that tells", func() bool {
		got = r.do("agent", "health")
		return got.code == 1 && strings.Contains(got.out, "Nomad") && strings.Contains(got.out, "Consul")
	})
	require.Contains(t, got.out, "not healthy\n")
	require.Empty(t, got.errout)
	got = r.do("agent", "health", "-json")
	require.Equal(t, 1, got.code)
	require.NotEqual(t, "null", field(t, got.out, "Problems"))
	require.Contains(t, r.ok("switch", "set", "cap-max-replicas", "1"), "cap-max-replicas = 1")
	require.Regexp(t, `(?m)^Nomad += unreachable: `, r.ok("agent", "info"))
	// A model cannot be checked without Nomad: nothing is changed.
	got = r.do("model", "apply", writeModel(t, "m", "  max = 1\n"+variant("h100", "1GiB")))
	require.Equal(t, 1, got.code)
	require.Contains(t, strings.ToLower(got.errout), "nomad")
	require.Contains(t, r.ok("model", "list"), `No models. Add one with "remuda model apply FILE".`)
}

func TestHealthyAgent(t *testing.T) {
	r := newWorld(t).dev()
	var got result
	r.eventually("health", func() bool { got = r.do("agent", "health"); return got.code == 0 })
	require.Equal(t, "healthy\n", got.out)
	var out string
	r.eventually("leadership", func() bool {
		out = r.ok("agent", "info")
		return strings.Contains(out, "up to date") && !strings.Contains(out, "no contact yet")
	})
	require.Regexp(t, `(?m)^Leads += yes$`, out)
	require.Regexp(t, `(?m)^ACL += disabled$`, out)
	require.Regexp(t, `(?m)^Nomad += up to date$`, out)
	var self api.AgentSelf
	r.json(&self, "agent", "info")
	require.NotEmpty(t, self.ID)
}

// TestGatewayFollowsTheController, and is seen to.
func TestGatewayFollowsTheController(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	ctx, stop := context.WithCancel(t.Context())
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	code := make(chan int, 1)
	go func() {
		code <- p.run([]string{"gateway", "-dev", "-listen", "127.0.0.1:0", "-operator-listen", "127.0.0.1:0", "-consul", w.consul.Addr(), "-controller", r.url})
	}()
	r.eventually("the gateway", func() bool {
		var self api.AgentSelf
		r.json(&self, "agent", "info")
		return len(self.Gateways) == 1
	})
	// Who begins to lead forgets what was reported before, so it may have to come anew.
	r.eventually("the gateway, in words", func() bool { return strings.Contains(r.ok("agent", "info"), "\nGateways\n") })
	stop()
	require.Equal(t, 0, <-code)
}

// TestACL: nothing without a token, and no more than its role allows.
func TestACL(t *testing.T) {
	w := newWorld(t)
	config := filepath.Join(t.TempDir(), "a.hcl")
	require.NoError(t, os.WriteFile(config, []byte("data_dir = \""+t.TempDir()+"\"\n"), 0o600))
	r := startAgent(t, "-config", config, "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0", "-nomad", w.nomad.URL, "-consul", w.consul.Addr())
	refused := func(want string, args ...string) {
		t.Helper()
		got := r.do(args...)
		require.Equal(t, 1, got.code, got.out)
		require.Empty(t, got.out)
		require.Contains(t, got.errout, want)
	}
	refused(`run "remuda acl bootstrap" once (PUT /v1/acl/bootstrap)`, "model", "list")
	require.Contains(t, r.ok("agent", "health"), "healthy: it knows the cluster's leader (with a token,")
	var first api.Token
	r.json(&first, "acl", "bootstrap")
	require.Contains(t, r.ok("agent", "health"), "healthy: it knows")
	require.NotEmpty(t, first.SecretID)
	refused("already", "acl", "bootstrap")
	refused("token", "model", "list", "-token", "00000000-0000-0000-0000-000000000000")

	t.Setenv(api.EnvToken, first.SecretID)
	require.Contains(t, r.ok("model", "list"), `No models. Add one with "remuda model apply FILE".`)
	require.Contains(t, r.ok("acl", "token", "self"), first.Accessor)
	out := r.ok("acl", "token", "create", "-role", "read-only", "-name", "dashboard")
	require.Regexp(t, `(?m)^Role += read-only$`, out)
	var reader api.Token
	r.json(&reader, "acl", "token", "create", "-role", "read-only", "-name", "other")
	out = r.ok("acl", "token", "list")
	require.Contains(t, out, "dashboard")
	require.NotContains(t, out, first.SecretID)
	require.Contains(t, r.ok("model", "list", "-token", reader.SecretID), `No models. Add one with "remuda model apply FILE".`)
	refused("read-only", "switch", "set", "cap-max-replicas", "1", "-token", reader.SecretID)
	require.Equal(t, "Deleted token "+reader.Accessor+".\n", r.ok("acl", "token", "delete", reader.Accessor))
	refused("token", "model", "list", "-token", reader.SecretID)
}

// TestThreeAgents form one cluster over TLS; it goes on when the leader is told to stop,
// and a server that comes back is of it again.
func TestThreeAgents(t *testing.T) {
	w := newWorld(t)
	ca := agenttest.NewCA(t)
	addresses := agenttest.Addresses(t, 6)
	var join []string
	for _, a := range addresses[3:] {
		join = append(join, fmt.Sprintf("%q", a))
	}
	var args [3][]string
	for i := range args {
		cert, key := ca.Issue("server.remuda")
		config := filepath.Join(t.TempDir(), "a.hcl")
		require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
data_dir           = %q
bootstrap_expect   = 3
join               = [%s]
leave_on_terminate = %t
raft {
  heartbeat_timeout    = "2s"
  election_timeout     = "2s"
  leader_lease_timeout = "2s"
}
tls {
  ca_file       = %q
  cert_file     = %q
  key_file      = %q
  verify_client = true
}
acl {
  enabled = false
}
`, t.TempDir(), strings.Join(join, ", "), i == 2, ca.File, cert, key)), 0o600))
		args[i] = []string{"-config", config, "-http", addresses[i], "-raft", addresses[3+i], "-nomad", w.nomad.URL, "-consul", w.consul.Addr()}
	}
	var agents [3]*running
	for i := range agents {
		agents[i] = startAgent(t, args[i]...)
		require.Equal(t, "https://"+addresses[i], agents[i].url)
	}
	got := agents[0].do("model", "list")
	require.Equal(t, 1, got.code, "no authority, no certificate")
	cert, key := ca.Issue()
	t.Setenv(api.EnvCACert, ca.File)
	got = agents[0].do("model", "list")
	require.Equal(t, 1, got.code, "no certificate")
	require.Contains(t, got.errout, "certificate")
	t.Setenv(api.EnvClientCert, cert)
	t.Setenv(api.EnvClientKey, key)

	peers := func(r *running) (servers []api.RaftServer, leader string) {
		var cfg api.RaftConfiguration
		out := r.do("raft", "list-peers", "-json")
		if out.code != 0 || out.out == "" {
			return nil, ""
		}
		r.json(&cfg, "raft", "list-peers")
		for _, s := range cfg.Servers {
			if s.Leader {
				leader = s.ID
			}
		}
		return cfg.Servers, leader
	}
	for _, a := range agents {
		a.eventually("three servers with a leader", func() bool {
			servers, leader := peers(a)
			return len(servers) == 3 && leader != ""
		})
	}
	// A write to any of them is seen by all.
	for i, a := range agents {
		a.ok("switch", "set", fmt.Sprintf("cap-max-replicas/s%d", i), "1")
	}
	for _, a := range agents {
		require.Equal(t, 3, strings.Count(a.ok("switch", "list"), " 1\n"))
	}
	id := func(r *running) string {
		var self api.AgentSelf
		r.json(&self, "agent", "info")
		return self.ID
	}
	ids := []string{id(agents[0]), id(agents[1]), id(agents[2])}

	// The first is made leader, and hands over when it is told to stop.
	agents[1].eventually("the first leads", func() bool {
		_, leader := peers(agents[1])
		if leader != "" && leader != ids[0] {
			// On a loaded machine there may be no leader at this moment, or another wins.
			agents[1].do("raft", "transfer-leader", ids[0])
		}
		return leader == ids[0]
	})
	require.Equal(t, 0, agents[0].stop())
	require.NotContains(t, agents[0].err.String(), "could not be handed over")
	agents[1].eventually("another leads", func() bool {
		_, leader := peers(agents[1])
		return leader != "" && leader != ids[0]
	})
	agents[1].ok("switch", "set", "cap-max-replicas/later", "1")
	agents[0] = startAgent(t, args[0]...)
	require.Equal(t, 4, strings.Count(agents[0].ok("switch", "list"), " 1\n"))

	// The third leaves for good.
	require.Equal(t, 0, agents[2].stop())
	agents[1].eventually("two servers", func() bool {
		servers, _ := peers(agents[1])
		return len(servers) == 2 && !slices.ContainsFunc(servers, func(s api.RaftServer) bool { return s.ID == ids[2] })
	})
	agents[1].ok("switch", "set", "cap-max-replicas/without-the-third", "1")
}

// TestAgentsThatCannotStart: a clear message, exit code 1, and nothing left behind.
func TestAgentsThatCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir := filepath.Join(t.TempDir(), "data")
	ca := agenttest.NewCA(t)
	cert, own := ca.Issue()
	_, key := ca.Issue()
	nameless := filepath.Join(t.TempDir(), "nameless.hcl")
	require.NoError(t, os.WriteFile(nameless, []byte(fmt.Sprintf("tls {\n ca_file = %q\n cert_file = %q\n key_file = %q\n}\n", ca.File, cert, own)), 0o600))
	mixed := filepath.Join(t.TempDir(), "mixed.hcl")
	require.NoError(t, os.WriteFile(mixed, []byte(fmt.Sprintf("tls {\n ca_file = %q\n cert_file = %q\n key_file = %q\n}\n", ca.File, cert, key)), 0o600))
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"the API's port is taken": {[]string{"-dev", "-data-dir", dir, "-http", taken.Addr().String(), "-raft", "127.0.0.1:0"}, "http.bind"},
		"Raft's port is taken":    {[]string{"-dev", "-data-dir", dir, "-http", "127.0.0.1:0", "-raft", taken.Addr().String()}, "raft"},
		"another's key":           {[]string{"-config", mixed, "-data-dir", dir, "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0"}, "private key does not match public key"},
		"a client's certificate":  {[]string{"-config", nameless, "-data-dir", dir, "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0"}, "does not bear the servers' name \"server.remuda\""},
		"a directory of a file":   {[]string{"-dev", "-data-dir", filepath.Join(mixed, "x"), "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0"}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			got := remuda(t, append([]string{"agent"}, tc.args...)...)
			require.Equal(t, 1, got.code)
			require.Contains(t, got.errout, tc.want)
		})
	}
}
