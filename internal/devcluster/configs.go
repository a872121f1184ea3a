package devcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
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
	files := map[string]string{"consul.json": string(consul) + "\n"}
	hcl := func(kind string, number int, content string) {
		name := numbered(kind, number) + ".hcl"
		for _, more := range c.opts.settings(kind, number) {
			merged, problem := overlay(content, name, []byte(more))
			err = errors.Join(err, problem)
			content = merged
		}
		files[name] = content
	}
	hcl("nomad-server", 0, c.nomadServerConfig())
	for i := range c.opts.Nodes {
		hcl("nomad-client", i, c.nomadClientConfig(i))
	}
	for i := range c.opts.Controllers {
		hcl("controller", i, c.controllerConfig(i))
	}
	for i := range c.opts.Gateways {
		hcl("gateway", i, c.gatewayConfig(i))
	}
	if err != nil {
		return err
	}
	for name, content := range files {
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
func (c *Cluster) nomadAgentConfig(name, dir, http, rpc, serf string) string {
	serfPort, advertiseSerf := "", ""
	if serf != "" {
		serfPort = fmt.Sprintf("\n  serf = %d", c.ports.ports[serf])
		advertiseSerf = fmt.Sprintf("\n  serf = %s", hclString(c.ports.addr(serf)))
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
`, hclString(name), hclString(dir), hclString(c.ports.addr(http)), hclString(c.ports.addr(rpc)), advertiseSerf,
		c.ports.ports[http], c.ports.ports[rpc], serfPort, hclString(c.ports.addr("consul-http")))
}

func (c *Cluster) nomadServerConfig() string {
	return c.nomadAgentConfig("server", c.dir.join("nomad-server"), "nomad-http", "nomad-rpc", "nomad-serf") + `
server {
  enabled          = true
  bootstrap_expect = 1
}
`
}

// nodeName is the name of one of the Nomad clients: dev, dev-2, dev-3.
func nodeName(i int) string { return numbered("dev", i) }

func (c *Cluster) nomadClientConfig(i int) string {
	low, high := c.ports.dynamic(i, c.opts.Nodes)
	dir := c.dir.join(numbered("nomad", i))
	return c.nomadAgentConfig(nodeName(i), dir, numbered("nomad-client-http", i), numbered("nomad-client-rpc", i), "") + fmt.Sprintf(`
plugin_dir = %s

client {
  enabled           = true
  servers           = [%s]
  network_interface = "lo"
  # Simulated engines use little of the CPU that their jobs reserve. Without this a slow machine has no room for them.
  cpu_total_compute = 100000
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
    sim_dir        = %s
    seed           = %s
    seats          = %d
    metrics        = %s
    simulate {
      model = "H100"
      count = %d
    }
  }
}
`, hclString(c.dir.join("plugins")), hclString(c.ports.addr("nomad-rpc")), low, high, hclString(filepath.Join(dir, "mounts")),
		hclString(devicePlugin), hclString(c.dir.nodeSockets(i)), hclString(c.dir.join(gpuDir)), hclString(c.ports.seed(i)), c.opts.Seats,
		hclString(c.ports.addr(numbered("device-metrics", i))), c.opts.GPUs)
}

func (c *Cluster) controllerConfig(i int) string {
	peers := ""
	// A single server has no other to elect but itself: it leads at once.
	timeout := 50 * time.Millisecond
	if c.opts.Controllers > 1 {
		timeout = time.Second
		var join []string
		for k := range c.opts.Controllers {
			join = append(join, hclString(c.ports.addr(numbered("controller-raft", k))))
		}
		peers = fmt.Sprintf("bootstrap_expect = %d\njoin = [%s]\n", c.opts.Controllers, strings.Join(join, ", "))
	}
	return fmt.Sprintf(`data_dir = %s
%s
raft {
  bind   = %s
  secret = %[8]q
  heartbeat_timeout    = %[4]q
  election_timeout     = %[4]q
  leader_lease_timeout = %[4]q
}

http {
  bind = %[5]s
}

# It listens on loopback only.
acl {
  enabled = false
}

# The demo engine loads in a second, so a rollout, an eviction or an idle model takes
# seconds here in place of minutes.
reconcile {
  profile     = "simulation"
  canary_time = "5s"
  min_age     = "10s"
}

nomad {
  address = %[6]s
}

consul {
  address = %[7]s
}
`, hclString(c.dir.join(numbered("controller", i))), peers, hclString(c.ports.addr(numbered("controller-raft", i))), timeout,
		hclString(c.ports.addr(numbered("controller", i))), hclString(c.ports.url("nomad-http")), hclString(c.ports.addr("consul-http")), c.raftSecret)
}

func (c *Cluster) gatewayConfig(i int) string {
	var controllers []string
	for _, url := range c.urls("controller", c.opts.Controllers) {
		controllers = append(controllers, hclString(url))
	}
	return fmt.Sprintf(`listen          = %s
operator_listen = %s

consul {
  address = %s
}

controller {
  addresses = [%s]
}
`, hclString(c.ports.addr(numbered("gateway", i))), hclString(c.ports.addr(numbered("gateway-operators", i))), hclString(c.ports.addr("consul-http")), strings.Join(controllers, ", "))
}

// foreign are the beginnings of variables that are about other clusters: how they are
// reached, with which tokens and certificates. PATH is made anew.
var foreign = regexp.MustCompile(`^(NOMAD_|CONSUL_|REMUDA_|PATH=)`)

// environment is what every daemon of the cluster gets, and with the Nomad client every
// task: the marker by which leftovers are found, a PATH with our programs, and the address
// of Consul. So the files of jobs/ run here unchanged.
func (c *Cluster) environment() []string {
	env := slices.DeleteFunc(os.Environ(), foreign.MatchString)
	path := filepath.Dir(c.opts.Remuda)
	if ollama, ok := c.tools["ollama"]; ok {
		path += string(os.PathListSeparator) + filepath.Dir(ollama.path)
	}
	if old := os.Getenv("PATH"); old != "" {
		path += string(os.PathListSeparator) + old
	}
	return append(env, "PATH="+path, "CONSUL_HTTP_ADDR="+c.ports.addr("consul-http"), envMarker+"="+c.dir.path)
}
