package deviceplugin

import (
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"

	"remuda/internal/pluginhost"
)

// UnderNomad says whether Nomad started this process as a plugin.
func UnderNomad() bool {
	return os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue
}

// Serve talks to Nomad until Nomad ends the process, or is gone itself (package
// pluginhost). It uses go-plugin directly: the convenience functions of Nomad's SDK bring in
// far more of Nomad than a plugin needs.
func Serve(p *Plugin, logger hclog.Logger) {
	pluginhost.Serve(base.Handshake, map[string]plugin.Plugin{
		base.PluginTypeBase:   &base.PluginBase{Impl: p},
		base.PluginTypeDevice: &device.PluginDevice{Impl: p},
	}, "Nomad", logger)
}
