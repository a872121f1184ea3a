package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/state"
	"remuda/jobs"
)

// autoscalerPlugin is the plugin's file name, which every plugin block of nomad-autoscaler
// must have as its driver.
const autoscalerPlugin = "remuda-autoscaler"

// DefaultPolicy is what scales the models where nothing else is said.
const DefaultPolicy = "capacity"

// Policies are those that jobs/ has: a strategy each, without "remuda-".
func Policies() []string {
	return []string{DefaultPolicy, "hpa", "replicate", "utilization", "predictive"}
}

// policyPath is the file of policies as nomad-autoscaler reads it.
func (c *Cluster) policyPath() string { return c.dir.join("config", "policies", "dev.policy.hcl") }

// writeAutoscaler writes the agent's configuration, the plugin and the policies.
func (c *Cluster) writeAutoscaler() error {
	if c.opts.NoAutoscaler {
		return nil
	}
	for _, dir := range []string{c.dir.join("autoscaler", "plugins"), filepath.Dir(c.policyPath())} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a directory for nomad-autoscaler: %w", err)
		}
	}
	if err := install(c.opts.Autoscaler, c.dir.join("autoscaler", "plugins", autoscalerPlugin)); err != nil {
		return err
	}
	policies, err := c.policies()
	if err != nil {
		return err
	}
	files := map[string]string{c.policyPath(): policies}
	for i := range c.opts.Autoscalers {
		name := numbered("autoscaler", i) + ".hcl"
		content := c.autoscalerConfig(i, strategiesFor(policies))
		for _, more := range c.opts.settings("autoscaler", i) {
			if content, err = overlay(content, name, []byte(more)); err != nil {
				return err
			}
		}
		files[c.dir.join("config", name)] = content
		if err := os.MkdirAll(c.dir.join(numbered("autoscaler", i)), 0o755); err != nil {
			return fmt.Errorf("make a directory for nomad-autoscaler: %w", err)
		}
	}
	for path, content := range files {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return fmt.Errorf("write a config file: %w", err)
		}
	}
	return nil
}

// policies are the file of the user, or a policy of jobs/ for each of the models whose file has none.
func (c *Cluster) policies() (string, error) {
	if !slices.Contains(Policies(), c.opts.Policy) {
		return readPolicies(c.opts.Policy)
	}
	name := jobs.Policy(c.opts.Policy)
	src, err := fs.ReadFile(jobs.Files, name)
	if err != nil {
		return "", fmt.Errorf("read the policy: %w", err)
	}
	var all []string
	for _, m := range c.models {
		if m.Scaling != nil {
			continue
		}
		text, err := policyFor(m, name, src)
		if err != nil {
			return "", err
		}
		all = append(all, text)
	}
	return strings.Join(all, "\n"), nil
}

// readPolicies reads a user's file and refuses what nomad-autoscaler would leave out without
// a word.
func readPolicies(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("-policy: %w", err)
	}
	file, diags := hclwrite.ParseConfig(raw, path, hcl.InitialPos)
	if diags.HasErrors() {
		return "", fmt.Errorf("-policy: %w", diags)
	}
	for _, block := range file.Body().Blocks() {
		if a := block.Body().GetAttribute("enabled"); block.Type() == "scaling" && a != nil && strings.TrimSpace(string(a.Expr().BuildTokens(nil).Bytes())) == "true" {
			return string(raw), nil
		}
	}
	return "", fmt.Errorf("-policy %s: nomad-autoscaler would do nothing: it has no block scaling \"NAME\" with enabled = true", path)
}

// policyFor writes a policy of jobs/ anew for a model: its name where the policy says that
// of the demo model, and its bounds.
func policyFor(m state.Model, name string, src []byte) (string, error) {
	file, diags := hclwrite.ParseConfig(src, name, hcl.InitialPos)
	if diags.HasErrors() {
		return "", fmt.Errorf("read the policy: %w", diags)
	}
	scaling := file.Body().FirstMatchingBlock("scaling", []string{"demo"})
	if scaling == nil {
		return "", fmt.Errorf("%s has no block scaling \"demo\"", name)
	}
	scaling.SetLabels([]string{m.Name})
	scaling.Body().SetAttributeValue("min", cty.NumberIntVal(int64(m.Min)))
	scaling.Body().SetAttributeValue("max", cty.NumberIntVal(int64(m.Max)))
	var rename func(*hclwrite.Body)
	rename = func(body *hclwrite.Body) {
		for key, value := range map[string]string{"model": m.Name, "query": "replicas/" + m.Name} {
			if body.GetAttribute(key) != nil {
				body.SetAttributeValue(key, cty.StringVal(value))
			}
		}
		for _, block := range body.Blocks() {
			rename(block.Body())
		}
	}
	rename(scaling.Body())
	return string(file.Bytes()), nil
}

// strategiesFor are all strategies, those that policies name first: a model file may name any of them at
// any time. Each has a process of its own.
func strategiesFor(policies string) []string {
	named := func(name string) int { return strings.Count(policies, strconv.Quote(name)) }
	return slices.SortedStableFunc(slices.Values(plugin.StrategyNames()), func(a, b string) int { return min(named(b), 1) - min(named(a), 1) })
}

// autoscalerConfig is nomad-autoscaler's own, with a plugin block for each face.
func (c *Cluster) autoscalerConfig(number int, strategies []string) string {
	where := fmt.Sprintf("controller = %s\n    consul     = %s", hclString(c.ports.url("controller")), hclString(c.ports.addr("consul-http")))
	var b strings.Builder
	fmt.Fprintf(&b, `plugin_dir = %s

http {
  bind_address = "127.0.0.1"
  bind_port    = %d
}

nomad {
  address = %s
}

policy {
  dir = %s
}

apm "remuda" {
  driver = %s
  args   = ["apm"]
  config = {
    %s
  }
}

target "remuda" {
  driver = %[5]s
  args   = ["target"]
  config = {
    controller = %[7]s
    policy_dir = %[4]s
  }
}
`, hclString(c.dir.join("autoscaler", "plugins")), c.ports.ports[numbered("autoscaler", number)], hclString(c.ports.url("nomad-http")),
		hclString(filepath.Dir(c.policyPath())), hclString(autoscalerPlugin), where, hclString(c.ports.url("controller")))
	for i, strategy := range strategies {
		name := strings.TrimPrefix(strategy, "remuda-")
		fmt.Fprintf(&b, `
strategy %s {
  driver = %s
  args   = ["strategy", %[1]s]
  config = {
    %[3]s
    decisions  = %[4]s
    state_dir  = %[5]s
`, hclString(strategy), hclString(autoscalerPlugin), where, hclString(c.dir.join(numbered("autoscaler", number), name+".decisions.json")),
			hclString(c.dir.join(numbered("autoscaler", number), "state")))
		if i == 0 { // each needs an address of its own, and there is one
			fmt.Fprintf(&b, "    metrics_listen = %s\n", hclString(c.ports.addr(numbered("autoscaler-metrics", number))))
		}
		b.WriteString("  }\n}\n")
	}
	return b.String()
}

// strategyServes asks the first strategy's endpoint: the agent reports healthy before it has
// started its plugins, and ends if it cannot start them.
func (c *Cluster) strategyServes(ctx context.Context, number int) error {
	return getOK(ctx, c.ports.url(numbered("autoscaler-metrics", number))+"/metrics")
}

func (c *Cluster) startAutoscalers(ctx context.Context) (string, error) {
	for i := range c.opts.Autoscalers {
		name := numbered("autoscaler", i)
		err := c.run(ctx, name, c.tools["nomad-autoscaler"].path, []string{"agent", "-config", c.dir.join("config", name+".hcl")}, name, 30*time.Second,
			func(ctx context.Context) error {
				return errors.Join(getOK(ctx, c.ports.url(name)+"/v1/health"), c.strategyServes(ctx, i))
			})
		if err != nil {
			return "", err
		}
	}
	what := c.opts.Policy
	if slices.Contains(Policies(), what) {
		var models, own []string
		for _, m := range c.models {
			if m.Scaling == nil {
				models = append(models, m.Name)
			} else {
				own = append(own, fmt.Sprintf("%s scales %s, as its file says", m.Scaling.Strategy, m.Name))
			}
		}
		if models != nil {
			own = append([]string{fmt.Sprintf("remuda-%s scales %s", what, strings.Join(models, ", "))}, own...)
		}
		what = strings.Join(own, "; ")
	}
	return strings.Join(c.urls("autoscaler", c.opts.Autoscalers), ", ") + ", " + what, nil
}
