// Package pluginhost serves a go-plugin plugin of Nomad or nomad-autoscaler until its host
// ends it or is gone.
package pluginhost

import (
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// parentPoll is how often Serve looks whether the host is still there.
const parentPoll = time.Second

// Serve talks to the host over go-plugin until the host ends the process, or is gone itself:
// one that was killed does not take its plugins along, and one that fails to start leaves
// some behind. A host that comes back starts plugins of its own, so that nothing is lost, and
// two that decide or publish for the same would race for ever. host is its name in the log.
func Serve(handshake plugin.HandshakeConfig, plugins map[string]plugin.Plugin, host string, logger hclog.Logger) {
	var (
		watching sync.WaitGroup
		done     = make(chan struct{})
		parent   = os.Getppid()
	)
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins:         plugins,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := plugin.DefaultGRPCServer(opts)
			watching.Go(func() {
				if orphaned(parent, done) {
					logger.Warn(host+" is gone, the plugin ends", "pid", parent)
					server.Stop() // ends the streams, and plugin.Serve with them
				}
			})
			return server
		},
		Logger: logger,
	})
	close(done)
	watching.Wait()
}

// orphaned waits until this process has another parent than before, and says false if done
// comes first.
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
