//go:build e2e && verify

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/documents"
)

// TestInstall runs the commands of docs/install.md, in their order, on a Debian 12 with Nomad and Consul with ACLs, which
// get TLS on the way, asks the model that they end with, and chats with it by the web page.
func TestInstall(t *testing.T) {
	dist := buildRelease(t, "0.1.0") // the document's
	m := bootMachine(t, "127.0.0.1", nil)
	out, err := exec.Command("nsenter", "--net=/proc/"+m.init+"/ns/net", "sh", "-euc",
		"ip link add eth0 type veth peer name eth1; ip address add 10.0.0.1/24 dev eth0; ip link set eth1 up; ip link set eth0 up").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, tool := range []string{"nomad", "consul", "nomad-autoscaler"} {
		m.copyIn(toolPath(t, tool), "/usr/local/bin/"+tool)
	}
	unzip, err := exec.LookPath("unzip")
	require.NoError(t, err)
	m.copyIn(unzip, "/usr/bin/unzip")
	files, err := filepath.Glob(filepath.Join(dist, "remuda*"))
	require.NoError(t, err)
	for _, file := range files {
		m.copyIn(file, filepath.Join("/root", filepath.Base(file)))
	}
	m.write("/etc/systemd/system/consul.service", "[Service]\nExecStart=/usr/local/bin/consul agent -dev -config-file /etc/consul.hcl -config-dir /etc/consul.d\n")
	m.write("/etc/consul.hcl", "acl {\n  enabled = true\n  default_policy = \"allow\"\n  tokens {\n    initial_management = \"c0000000-0000-4000-8000-000000000000\"\n  }\n}\n")
	m.write("/etc/systemd/system/nomad.service", "[Service]\nExecStart=/usr/local/bin/nomad agent -config /etc/nomad.d\nKillMode=process\n")
	m.write("/etc/nomad.d/nomad.hcl", installNomadConfig)
	m.write("/etc/hosts", "127.0.0.1 localhost\n")
	m.sh(`mkdir -p /etc/consul.d /opt/nomad/data/plugins /opt/nomad-autoscaler/plugins /srv/models
		systemctl start consul nomad`)
	m.within(time.Minute, `nomad acl bootstrap >/root/nomad`)
	m.sh(`{ sed -n 's/^Secret ID *= */export NOMAD_TOKEN=/p' /root/nomad; echo export CONSUL_HTTP_TOKEN=c0000000-0000-4000-8000-000000000000; echo cd; } >/root/session`)
	p := &page{machine: m}
	p.read("docs/install.md")
	require.Greater(t, p.ran, 35)
	require.True(t, p.answered, "a command asks the model")
	p.run("remuda doctor")
	p.run(`curl --silent --cacert $REMUDA_CACERT --cookie remuda_token=$REMUDA_TOKEN $REMUDA_ADDR/ui/chat -d '{"model":"demo","messages":[{"role":"user","content":"Hello"}]}'`)
	require.Contains(t, p.printed, `"content"`, "the model has answered the web page")
}

// page runs the commands of a document in one session of a machine.
type page struct {
	*machine
	ran      int
	answered bool
	// printed is what the last command printed, secret what the last one did that printed a secret.
	printed, secret string
}

// byHand is what an administrator does before a command, as the document's prose says.
var byHand = []struct{ before, do string }{
	{"systemctl enable --now remuda-lockd", `sed -i 's|^GMS_FLAGS=.*|GMS_FLAGS=-backend host -gpu GPU-00000000-0000-4000-8000-000000000000=80GiB|' /etc/remuda.d/node.env`},
	{"systemctl enable --now remuda-controller", `sed -i '/^nomad/,/^}/ s|# token = ""|token = "'$NOMAD_TOKEN'"|' /etc/remuda.d/controller.hcl`},
	{"systemctl enable --now remuda-gateway", `sed -i 's|# token   = "".*|token = "SECRET"|' /etc/remuda.d/gateway.hcl`},
	// Here the document changes from systemd units to Nomad jobs. The machine has no cgroup controllers, so Nomad's exec
	// driver is missing, and the controller's job runs with raw_exec. TestPair runs it with exec.
	{"unzip ~/remuda-device", `systemctl disable --now remuda-gateway remuda-controller remuda-gms remuda-lockd; unset REMUDA_TOKEN
		sed -i -e 's|driver = "exec"|driver = "raw_exec"|' -e 's|= "/raft"$|= "/var/lib/remuda"|' -e '/volume_mount {/,/}/d' /usr/share/remuda/jobs/controller.nomad.hcl`},
	// The simulator's job has no variable tls: it gets the ports and arguments as docs/security.md says.
	{"remuda model apply -dry-run", `sed -i 's|vars    = { |&consul = "'$CONSUL_HTTP_ADDR'", |' demo.model.hcl
		sed -i -e 's|port "\([a-z]*\)_shim" {}|&\n      port "\1_tls" {}|' \
			-e 's|"-listen", "${NOMAD_ADDR_\([a-z]*\)_shim}",|& "-tls-listen", "${NOMAD_ADDR_\1_tls}", "-tls-cert", "/etc/remuda/engine/engine.pem", "-tls-key", "/etc/remuda/engine/engine-key.pem",|' failover.nomad.hcl
		[ $(grep -c _tls failover.nomad.hcl) = 4 ]`},
}

// printedSecret is that of a new token.
var printedSecret = regexp.MustCompile(`(?m)^Secret += (\S+)$`)

// read runs what the document's blocks have, and writes their files.
func (p *page) read(name string) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	require.NoError(p.t, err)
	blocks, _ := documents.Parse(string(text))
	for _, b := range blocks {
		if file := b.File(); file != "" {
			config := strings.Join(b.Lines, "\n") + "\n"
			p.write(file, strings.Replace(config, "config {\n    seats", "config {\n    simulate {\n      model = \"H100\"\n      count = 1\n    }\n    seats", 1))
		}
		for _, c := range b.Commands([]string{"remuda", "curl", "nomad", "consul", "systemctl", "export", "cd", "cp", "install", "unzip", "sed", "env"}) {
			require.NotEmpty(p.t, b.Info, "%s:%d: a block with commands must have the info string sh", name, b.Line)
			if reason := b.NotRun(); reason != "" {
				p.t.Logf("%s:%d: not run: %s (%s)", name, c.Line, c.Text, reason)
				continue
			}
			p.t.Logf("%s:%d: %s", name, c.Line, c.Text)
			text := p.ofThisMachine(c.Text)
			for _, h := range byHand {
				if strings.HasPrefix(text, h.before) {
					p.run(p.ofThisMachine(h.do))
				}
			}
			if text == "remuda doctor" {
				text += " || [ $? = 1 ]" // it finds problems as long as there is no model
			}
			p.run(text)
			p.ran++
			if strings.HasPrefix(text, "curl ") {
				require.Contains(p.t, p.printed, `"content"`, "the model has answered")
				p.answered = true
			}
			if strings.HasPrefix(text, "systemctl restart consul nomad") {
				p.within(time.Minute, `. /root/session; consul members; nomad node status -self | grep -q ready`)
			}
			if strings.HasPrefix(text, "systemctl restart nomad") {
				p.within(time.Minute, `. /root/session; nomad node status -self -verbose | grep -q "nvidia/gpu"`)
			}
			if strings.HasPrefix(text, "systemctl enable --now remuda-controller") {
				p.within(time.Minute, `curl --silent --fail $REMUDA_ADDR/ready`)
			}
		}
	}
}

// ofThisMachine puts one server, the simulated GPU and engine, and the last secret in the place of the document's.
func (p *page) ofThisMachine(command string) string {
	return strings.NewReplacer(
		`["10.0.0.1", "10.0.0.2", "10.0.0.3"]`, `["10.0.0.1"]`,
		`["https://10.0.0.1:4750", "https://10.0.0.2:4750", "https://10.0.0.3:4750"]`, `["https://10.0.0.1:4750"]`,
		`jobs/node.nomad.hcl`, `-var 'memory=["-backend", "host", "-gpu", "GPU-00000000-0000-4000-8000-000000000000=80GiB"]' jobs/node.nomad.hcl`,
		`llama-3-8b`, `demo`, `vllm.nomad.hcl`, `failover.nomad.hcl`,
		`GATEWAY`, `10.0.0.1`, `SECRET`, p.secret).Replace(command)
}

// run runs a command with the directory and the environment that the commands before it left.
func (p *page) run(command string) {
	p.t.Helper()
	p.printed = p.sh(fmt.Sprintf(". /root/session\n%s\n{ export -p; echo \"cd '$PWD'\"; } >/root/session.new\nmv /root/session.new /root/session", command))
	if found := printedSecret.FindStringSubmatch(p.printed); found != nil {
		p.secret = found[1]
	}
}

// installNomadConfig is a Nomad with ACLs, without anything for remuda.
const installNomadConfig = `
data_dir  = "/opt/nomad/data"
bind_addr = "0.0.0.0"

advertise {
  http = "10.0.0.1"
  rpc  = "10.0.0.1"
  serf = "10.0.0.1"
}

acl {
  enabled = true
}

server {
  enabled          = true
  bootstrap_expect = 1
}

client {
  enabled           = true
  network_interface = "eth0"
  options = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean" }
}
`
