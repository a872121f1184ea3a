package devcluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsimple"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// written is a cluster that has not started, with its autoscaler's files written.
func written(t *testing.T, policy string, models ...state.Model) *Cluster {
	t.Helper()
	plugin := filepath.Join(t.TempDir(), autoscalerPlugin)
	require.NoError(t, os.WriteFile(plugin, []byte("#!/bin/sh\n"), 0o755))
	o := DefaultOptions()
	o.Policy, o.Autoscaler = policy, plugin
	c, err := New(o)
	require.NoError(t, err)
	c.models = models
	c.dir, err = openDataDir(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.dir.Close()) })
	require.NoError(t, c.dir.wipe())
	c.ports, err = claimPorts(o.portNames())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.ports.Close()) })
	require.NoError(t, c.writeAutoscaler())
	return c
}

func TestEachModelHasAPolicy(t *testing.T) {
	for _, name := range Policies() {
		c := written(t, name, state.Model{Name: "a", Min: 1, Max: 3}, state.Model{Name: "b.2", Max: 7})
		raw, err := os.ReadFile(c.policyPath())
		require.NoError(t, err)
		var file sdk.FileDecodeScalingPolicies
		require.NoError(t, hclsimple.Decode("p.hcl", raw, nil, &file), "%s", raw)
		require.Len(t, file.ScalingPolicies, 2)
		a, b := file.ScalingPolicies[0], file.ScalingPolicies[1]
		require.Equal(t, []any{"a", int64(1), int64(3)}, []any{a.Name, a.Min, a.Max})
		require.Equal(t, []any{"b.2", int64(0), int64(7)}, []any{b.Name, b.Min, b.Max})
		require.Equal(t, "replicas/b.2", b.Doc.Checks[0].Query)
		require.Equal(t, "b.2", b.Doc.Checks[0].Strategy.Config["model"])
		require.Equal(t, "b.2", b.Doc.Target.Config["model"])
		require.NotContains(t, a.Doc.Checks[0].Strategy.Config, "query")
	}
}

func TestAModelWithAPolicyInItsFileHasNoOther(t *testing.T) {
	c := written(t, DefaultPolicy, state.Model{Name: "a", Max: 3, Scaling: &state.Scaling{Strategy: "remuda-hpa"}}, state.Model{Name: "b", Max: 3})
	raw, err := os.ReadFile(c.policyPath())
	require.NoError(t, err)
	require.NotContains(t, string(raw), `scaling "a"`)
	require.Contains(t, string(raw), `scaling "b"`)
}

func TestTheAgentHasABlockForEachFace(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own.hcl")
	const text = "scaling \"x\" {\n  enabled = true\n  policy {\n    check \"a\" {\n      strategy \"remuda-predictive\" {}\n    }\n    check \"b\" {\n      strategy \"remuda-capacity\" {}\n    }\n  }\n}\n"
	require.NoError(t, os.WriteFile(own, []byte(text), 0o600))
	for policy, want := range map[string][]string{
		"hpa": {"apm remuda", "target remuda", "strategy remuda-hpa", "strategy remuda-capacity", "strategy remuda-utilization", "strategy remuda-predictive"},
		own:   {"apm remuda", "target remuda", "strategy remuda-capacity", "strategy remuda-predictive", "strategy remuda-hpa", "strategy remuda-utilization"},
	} {
		c := written(t, policy, state.Model{Name: "a", Max: 3})
		path := c.dir.join("config", "autoscaler.hcl")
		file, diags := hclparse.NewParser().ParseHCLFile(path)
		require.False(t, diags.HasErrors(), "%v", diags)
		var got []string
		for _, b := range bodyOf(t, file).Blocks {
			if len(b.Labels) == 1 {
				got = append(got, b.Type+" "+b.Labels[0])
				driver, diags := b.Body.Attributes["driver"].Expr.Value(nil)
				require.False(t, diags.HasErrors())
				require.Equal(t, autoscalerPlugin, driver.AsString(), "nomad-autoscaler compares it with the file's name")
			}
		}
		require.Equal(t, want, got, "all strategies, the policy's first, which has the metrics")
		require.FileExists(t, c.dir.join("autoscaler", "plugins", autoscalerPlugin))
	}
	c := written(t, own)
	raw, err := os.ReadFile(c.policyPath())
	require.NoError(t, err)
	require.Equal(t, text, string(raw), "the user's policies are taken as they are")
}

func bodyOf(t *testing.T, f *hcl.File) *hclsyntax.Body {
	t.Helper()
	body, ok := f.Body.(*hclsyntax.Body)
	require.True(t, ok)
	return body
}

func TestPoliciesThatWouldDoNothing(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"not enabled":       {"scaling \"x\" {\n}\n", `it has no block scaling "NAME" with enabled = true`},
		"switched off":      {"scaling \"x\" {\n  enabled = false\n}\n", `it has no block scaling "NAME" with enabled = true`},
		"nothing":           {"", `it has no block scaling "NAME" with enabled = true`},
		"no HCL":            {"scaling {\n  enabled = \n}\n", "own.hcl:2,13"},
		"another is":        {"scaling \"x\" {\n}\nscaling \"y\" {\n  enabled = true\n}\n", ""},
		"not a file at all": {"-", "-policy: "},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "own.hcl")
			if c.text != "-" {
				require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
			}
			got, err := readPolicies(path)
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, c.text, got)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}
