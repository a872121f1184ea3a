package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad-autoscaler/plugins"
	"github.com/hashicorp/nomad-autoscaler/plugins/apm"
	"github.com/hashicorp/nomad-autoscaler/plugins/base"
	"github.com/hashicorp/nomad-autoscaler/plugins/strategy"
	"github.com/hashicorp/nomad-autoscaler/plugins/target"
	"github.com/hashicorp/nomad-autoscaler/sdk"

	remuda "remuda/autoscaler-plugin/plugin"
	"remuda/internal/pluginhost"
)

// served is a face with what go-plugin needs of it.
type served struct {
	plugins map[string]plugin.Plugin
	close   func()
}

// face makes what the args ask for: "strategy NAME", "target" or "apm".
func face(name string, args []string, log hclog.Logger) (served, error) {
	bad := fmt.Errorf("args is %q: must be [\"strategy\", NAME], [\"target\"] or [\"apm\"], where NAME is one of %s", args, strings.Join(remuda.StrategyNames(), ", "))
	if len(args) == 0 {
		return served{}, bad
	}
	switch {
	case args[0] == "strategy" && len(args) == 2:
		p, err := remuda.NewStrategy(remuda.StrategyConfig{Name: name, Strategy: args[1], Logger: log})
		if err != nil {
			return served{}, err
		}
		return served{plugins: map[string]plugin.Plugin{
			sdk.PluginTypeBase:     &base.PluginBase{Impl: p},
			sdk.PluginTypeStrategy: &strategy.PluginStrategy{Impl: p},
		}, close: p.Close}, nil
	case args[0] == "target" && len(args) == 1:
		p := remuda.NewTarget(remuda.TargetConfig{Name: name, Logger: log})
		return served{plugins: map[string]plugin.Plugin{
			sdk.PluginTypeBase:   &base.PluginBase{Impl: p},
			sdk.PluginTypeTarget: &target.PluginTarget{Impl: p},
		}, close: p.Close}, nil
	case args[0] == "apm" && len(args) == 1:
		p := remuda.NewAPM(remuda.APMConfig{Name: name, Logger: log})
		return served{plugins: map[string]plugin.Plugin{
			sdk.PluginTypeBase: &base.PluginBase{Impl: p},
			sdk.PluginTypeAPM:  &apm.PluginAPM{Impl: p},
		}, close: p.Close}, nil
	}
	return served{}, bad
}

// underAutoscaler says whether nomad-autoscaler started this process as a plugin.
func underAutoscaler() bool {
	return os.Getenv(plugins.Handshake.MagicCookieKey) == plugins.Handshake.MagicCookieValue
}

// serve talks to nomad-autoscaler until it ends the process, or is gone itself.
func serve(f served, logger hclog.Logger) {
	pluginhost.Serve(plugins.Handshake, f.plugins, "nomad-autoscaler", logger)
	f.close()
}
