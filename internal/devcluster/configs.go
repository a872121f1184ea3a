package devcluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// devicePlugin is the plugin's file name, and with it its name in Nomad.
const devicePlugin = "remuda-device"

// hclString quotes s for HCL, in which ${ and %{ begin templates.
func hclString(s string) string {
	quoted := fmt.Sprintf("%q", s)
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(quoted)
}

// writeConfigs writes what Consul, Nomad, nomad-autoscaler, the controller
// and the gateway read, and puts the device plugin into Nomad's plugin directory.
func (c *Cluster) writeConfigs() error {
	consul, err := json.MarshalIndent(c.consulConfig(), "", "  ")
	if err != nil {
		return fmt.Errorf("render consul.json: %w", err)
	}
	for name, content := range map[string]string{
		"consul.json":      string(consul) + "\n",
		"nomad-server.hcl": c.nomadServerConfig(),
		"nomad-client.hcl": c.nomadClientConfig(),
		"controller.hcl":   c.controllerConfig(),
		"gateway.hcl":      c.gatewayConfig(),
	} {
		if err := os.WriteFile(c.dir.join("config", name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("write a config file: %w", err)
		}
	}
	if err := install(c.opts.Device, c.dir.join("plugins", devicePlugin)); err != nil {
		return err
	}
	return c.writeAutoscaler()
}

// install puts a plugin where its host looks for it. A symbolic link would give it the
// target's name, and Nomad lists files only.
func install(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	if err := copyFile(from, to); err != nil {
		return fmt.Errorf("install the plugin %s: %w", filepath.Base(to), err)
	}
	return nil
}

func copyFile(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o755)
}

func (c *Cluster) consulConfig() map[string]any {
	return map[string]any{
		"node_name": "dev", "datacenter": "dc1", "server": true, "bootstrap_expect": 1,
		"data_dir": c.dir.join("consul"), "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1",
		"ports": map[string]int{
			"http": c.ports.ports["consul-http"], "grpc": c.ports.ports["consul-grpc"], "grpc_tls": -1, "dns": -1,
			"server": c.ports.ports["consul-server"], "serf_lan": c.ports.ports["consul-serf"], "serf_wan": -1,
		},
		"ui_config": map[string]bool{"enabled": true},
		// The smallest allowed: elections take a second, not ten.
		"performance":          map[string]int{"raft_multiplier": 1},
		"disable_update_check": true,
	}
}

// nomadAgentConfig is what the server and the client have in common. Both are
// agents of their own: so it is in production, and a combined agent can lose a
// race with itself at its start (its node registers before its keyring is
// ready).
func (c *Cluster) nomadAgentConfig(name, dir, ports string) string {
	serf := ""
	advertiseSerf := ""
	if port, ok := c.ports.ports[ports+"-serf"]; ok {
		serf = fmt.Sprintf("\n  serf = %d", port)
		advertiseSerf = fmt.Sprintf("\n  serf = %s", hclString(c.ports.addr(ports+"-serf")))
	}
	return fmt.Sprintf(`name       = %s
region     = "global"
datacenter = "dc1"
data_dir   = %s
bind_addr  = "127.0.0.1"

# Started as root on loopback, Nomad cannot guess what to advertise.
advertise {
  http = %s
  rpc  = %s%s
}

ports {
  http = %d
  rpc  = %d%s
}

disable_update_check = true

consul {
  address = %s
}

telemetry {
  prometheus_metrics         = true
  publish_allocation_metrics = true
}
`, hclString(name), hclString(dir), hclString(c.ports.addr(ports+"-http")), hclString(c.ports.addr(ports+"-rpc")), advertiseSerf,
		c.ports.ports[ports+"-http"], c.ports.ports[ports+"-rpc"], serf, hclString(c.ports.addr("consul-http")))
}

func (c *Cluster) nomadServerConfig() string {
	return c.nomadAgentConfig("server", c.dir.join("nomad-server"), "nomad") + `
server {
  enabled          = true
  bootstrap_expect = 1
}
`
}

func (c *Cluster) nomadClientConfig() string {
	low, high := c.ports.dynamic()
	return c.nomadAgentConfig("dev", c.dir.join("nomad"), "nomad-client") + fmt.Sprintf(`
plugin_dir = %s

client {
  enabled           = true
  servers           = [%s]
  network_interface = "lo"
  min_dynamic_port  = %d
  max_dynamic_port  = %d
  # The default lies beside the data directory, where nobody would look.
  alloc_mounts_dir = %s
  options = {
    # These ask addresses that exist only in clouds.
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}

plugin "raw_exec" {
  config {
    enabled = true
  }
}

plugin %s {
  config {
    gms_socket_dir = %s
    seed           = %s
    seats          = %d
    simulate {
      model = "H100"
      count = %d
    }
  }
}
`, hclString(c.dir.join("plugins")), hclString(c.ports.addr("nomad-rpc")), low, high, hclString(c.dir.join("nomad", "mounts")),
		hclString(devicePlugin), hclString(c.dir.sockets()), hclString(c.ports.seed()), c.opts.Seats, c.opts.GPUs)
}

func (c *Cluster) controllerConfig() string {
	return fmt.Sprintf(`data_dir = %s

raft {
  bind = %s
  # A single server has nobody to elect but itself: it leads at once.
  heartbeat_timeout    = "50ms"
  election_timeout     = "50ms"
  leader_lease_timeout = "50ms"
}

http {
  bind = %s
}

# Nobody but this machine reaches it.
acl {
  enabled = false
}

# The demo engine loads in a second: who tries a rollout, an eviction or an idle model
# need not wait for minutes.
reconcile {
  canary_time    = "5s"
  min_age        = "10s"
  thrash_window  = "1m"
  traffic_window = "10s"
  tier_grace     = "5s"
  prune_interval = "5s"

  rates {
    start = "1s"
    wake  = "300ms"
  }
}

nomad {
  address = %s
}

consul {
  address = %s
}
`, hclString(c.dir.join("controller")), hclString(c.ports.addr("controller-raft")), hclString(c.ports.addr("controller")),
		hclString("http://"+c.ports.addr("nomad-http")), hclString(c.ports.addr("consul-http")))
}

func (c *Cluster) gatewayConfig() string {
	return fmt.Sprintf(`listen = %s

consul {
  address = %s
}

controller {
  addresses = [%s]
}
`, hclString(c.ports.addr("gateway")), hclString(c.ports.addr("consul-http")), hclString("http://"+c.ports.addr("controller")))
}

// foreign are the beginnings of variables that are about other clusters: how they are
// reached, with which tokens and certificates. PATH is made anew.
var foreign = regexp.MustCompile(`^(NOMAD_|CONSUL_|REMUDA_|PATH=)`)

// environment is what every daemon of the cluster gets: the marker by which
// leftovers are found, and a PATH on which Nomad's tasks find our programs.
func (c *Cluster) environment() []string {
	env := slices.DeleteFunc(os.Environ(), foreign.MatchString)
	path := filepath.Dir(c.opts.Remuda)
	if ollama, ok := c.tools["ollama"]; ok {
		path += string(os.PathListSeparator) + filepath.Dir(ollama.path)
	}
	if old := os.Getenv("PATH"); old != "" {
		path += string(os.PathListSeparator) + old
	}
	return append(env, "PATH="+path, envMarker+"="+c.dir.path)
}
