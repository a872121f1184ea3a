//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/internal/testkit/documents"
	"remuda/jobs"
)

// TestDocuments runs the commands of the README and of the guides, in their order, on one cluster that `remuda
// dev` would run. A block that cannot run there says why in its info string, which is logged.
func TestDocuments(t *testing.T) {
	t.Parallel()
	d := newDev(t, func(o *devcluster.Options) { o.Seats = devcluster.DefaultOptions().Seats })
	f := &fleet{dev: d, t: t, dir: dataDir(t), api: d.controller}
	r := &reader{fleet: f}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(root, "jobs"), filepath.Join(f.dir, "jobs")))
	require.NoError(t, os.Symlink(filepath.Dir(binary(t, "remuda")), filepath.Join(f.dir, "bin")))

	r.read("README.md")
	require.Contains(t, r.printed, "\n301\n", "the stream has all its tokens")
	require.Contains(t, r.printed, "data: [DONE]")
	r.read("docs/guides/upgrades.md")
	r.read("docs/guides/failover.md")
	r.read("docs/guides/gateway.md")
	r.read("docs/guides/own-engine.md")
	r.read("docs/operations.md")
	r.read("docs/guides/tiers.md")
	r.read("docs/guides/pools.md")
	t.Run("scale the demo model, apply its file as it is, and changed", r.secondStep)
	r.read("docs/guides/scaling.md") // its switches stop everything
	t.Logf("%d commands were run, %d were not:\n%s", r.ran, len(r.notRun), strings.Join(r.notRun, "\n"))
	require.Greater(t, r.ran, 45)
	require.Less(t, len(r.notRun), 20)
}

// reader runs what it reads.
type reader struct {
	*fleet
	ran    int
	notRun []string
	// printed is what the commands of the last document printed.
	printed string
}

// examples are the replicas of documents, by the beginnings of their IDs.
var examples = regexp.MustCompile(`\b(demo|mine):sim:[0-9a-f]{8}\b`)

// read runs the commands of a document, each block in a shell of its own.
func (r *reader) read(name string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	require.NoError(r.t, err)
	r.printed = ""
	blocks, _ := documents.Parse(string(text))
	for _, b := range blocks {
		if file := b.File(); file != "" {
			require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, file), []byte(strings.Join(b.Lines, "\n")+"\n"), 0o600))
		}
		commands := b.Commands([]string{"remuda", "curl", "nomad", "make", "export"})
		if len(commands) == 0 {
			continue
		}
		where := fmt.Sprintf("%s:%d", name, b.Line)
		require.NotEmpty(r.t, b.Info, "%s: a block with commands must have the info string sh or console, and not-run: REASON where they cannot run", where)
		if reason := b.NotRun(); reason != "" {
			for _, c := range commands {
				r.notRun = append(r.notRun, fmt.Sprintf("%s:%d: %s (%s)", name, c.Line, c.Text, reason))
			}
			continue
		}
		script := "set -euo pipefail\n"
		for _, c := range commands {
			script += c.Text + "\n"
			r.ran++
		}
		script = r.ofThisCluster(script)
		r.t.Logf("%s:\n%s", where, script)
		r.printed += "\n" + r.shell(where, script)
	}
}

// ofThisCluster puts the cluster's names and addresses in place of those of the documents.
func (r *reader) ofThisCluster(script string) string {
	r.t.Helper()
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	values := []string{"localhost:8080", host(r.info.Gateway), "127.0.0.1:4750", host(r.info.Controller), "127.0.0.1:4646", host(r.info.Nomad),
		"cap-max-replicas/MODEL", "cap-max-replicas/mine", "unset NAME", "unset pause-reconcile"}
	if strings.Contains(script, "lockd.sock") {
		found, err := filepath.Glob(filepath.Join("/tmp", fmt.Sprintf("remuda-%d-*", os.Getuid()), "*", "lockd.sock"))
		require.NoError(r.t, err)
		for _, path := range found {
			if len(r.commands(filepath.Dir(path))) > 0 {
				values = append(values, "/run/remuda/lockd.sock", path)
			}
		}
	}
	if strings.Contains(script, "ALLOC") {
		allocs, _, err := r.nomad.Jobs().Allocations("remuda-node", false, nil)
		require.NoError(r.t, err)
		for _, a := range allocs {
			if _, ok := a.TaskStates["gms"]; ok && a.ClientStatus == "running" {
				values = append(values, "ALLOC", a.ID)
			}
		}
	}
	if strings.Contains(script, "ENGINE") {
		services, _, err := r.consul.Health().Service("remuda-engine", "", true, nil)
		require.NoError(r.t, err)
		require.NotEmpty(r.t, services)
		values = append(values, "ENGINE", fmt.Sprintf("%s:%d", services[0].Service.Address, services[0].Service.Port))
	}
	script = strings.NewReplacer(values...).Replace(script)
	return examples.ReplaceAllStringFunc(script, func(name string) string {
		model, _, _ := strings.Cut(name, ":")
		return r.hot(model, 1)[0]
	})
}

// shell runs a script as a user would at a terminal, and returns what it printed.
func (r *reader) shell(where, script string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-s") // pgrep -f must not find the script
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(script)
	cmd.Env = append(os.Environ(), "REMUDA_ADDR="+r.info.Controller, "REMUDA_GATEWAY="+r.info.Gateway, "NOMAD_ADDR="+r.info.Nomad, "CONSUL_HTTP_ADDR="+r.info.Consul,
		"PATH="+strings.Join([]string{filepath.Dir(binary(r.t, "remuda")), filepath.Dir(toolPath(r.t, "nomad")), os.Getenv("PATH")}, string(os.PathListSeparator)))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	require.NoError(r.t, cmd.Run(), "%s:\n%s\nprinted:\n%s", where, script, &out)
	return out.String()
}

// secondStep scales the demo model, then applies its file as it is, and with a change. Both end, as there is
// room for a rollout.
func (r *reader) secondStep(t *testing.T) {
	r.remuda("scale", "demo", "2")
	before := r.hot("demo", 2)
	file := filepath.Join("..", "jobs", "demo.model.hcl")
	require.Contains(t, r.remuda("model", "apply", file), "Nothing changed")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := filepath.Join(r.dir, "demo.model.hcl")
	require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(string(raw), "slots   = 16", "slots   = 8", 1)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "failover.nomad.hcl"), []byte(jobs.Failover), 0o600))
	r.remuda("model", "apply", changed)
	after := r.hot("demo", 2)
	for _, name := range before {
		require.NotContains(t, after, name)
	}
	r.answers("after the rollout")
}
