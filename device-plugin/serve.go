package deviceplugin

import (
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"google.golang.org/grpc"
)

// UnderNomad says whether Nomad started this process as a plugin.
func UnderNomad() bool {
	return os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue
}

// parentPoll is how often Serve looks whether Nomad is still there.
const parentPoll = time.Second

// Serve talks to Nomad over go-plugin until Nomad ends the process, or is gone
// itself: a killed agent does not take its plugins along, and an agent that
// fails to start leaves some behind. A restarted agent starts a plugin of its
// own, so nothing is lost.
//
// It uses go-plugin directly: the convenience functions of Nomad's SDK bring in
// far more of Nomad than a plugin needs.
func Serve(p *Plugin, logger hclog.Logger) {
	var (
		watching sync.WaitGroup
		served   = make(chan struct{})
		parent   = os.Getppid()
	)
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{Impl: p},
			base.PluginTypeDevice: &device.PluginDevice{Impl: p},
		},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := plugin.DefaultGRPCServer(opts)
			watching.Go(func() {
				if orphaned(parent, served) {
					logger.Warn("Nomad is gone, the plugin ends", "nomad_pid", parent)
					server.Stop() // ends the streams, and plugin.Serve with them
				}
			})
			return server
		},
		Logger: logger,
	})
	close(served)
	watching.Wait()
}

// orphaned waits until this process has another parent than before, and says
// false if done comes first.
func orphaned(parent int, done <-chan struct{}) bool {
	tick := time.NewTicker(parentPoll)
	defer tick.Stop()
	for os.Getppid() == parent {
		select {
		case <-tick.C:
		case <-done:
			return false
		}
	}
	return true
}
