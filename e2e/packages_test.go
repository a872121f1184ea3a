//go:build e2e && verify

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// buildRelease makes a release of the last commit for this architecture in a new clone, and returns its directory.
func buildRelease(t testing.TB, version string) string {
	t.Helper()
	dir := t.TempDir()
	clone, dist := filepath.Join(dir, "clone"), filepath.Join(dir, "dist")
	for _, args := range [][]string{
		{"git", "clone", "-q", "--shared", "..", clone},
		{"go", "-C", "../tools/release", "run", ".", "-root", clone, "-out", dist, "-arch", "amd64", "-version", version},
	} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
	}
	return dist
}

// daemonUnits are the units of the package.
var daemonUnits = []string{"remuda-controller", "remuda-gateway", "remuda-gms", "remuda-lockd"}

// TestPackages installs the packages on three machines with Debian 12 as it comes from debootstrap, the first with Nomad
// and Consul, has systemd run the daemons by their units, serves a failover pair, upgrades under load, and removes
// everything.
func TestPackages(t *testing.T) {
	one, again, two := buildRelease(t, "0.1.1"), buildRelease(t, "0.1.1"), buildRelease(t, "0.1.2")
	sums := func(dist, version string) string {
		text, err := os.ReadFile(filepath.Join(dist, "remuda_"+version+"_SHA256SUMS"))
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, sums(one, "0.1.1"), sums(again, "0.1.1"), "a second release of the commit has other bytes")
	require.Equal(t, 12, strings.Count(sums(one, "0.1.1"), "\n"), "a zip, an SBOM, a deb and an rpm of each program")

	m := bootMachine(t, "127.0.0.1", nil)
	machines := []*machine{m, bootMachine(t, "127.0.0.2", m), bootMachine(t, "127.0.0.3", m)}
	m.copyIn(toolPath(t, "nomad"), "/usr/local/bin/nomad")
	m.copyIn(toolPath(t, "consul"), "/usr/local/bin/consul")
	m.write("/etc/systemd/system/consul.service", "[Service]\nExecStart=/usr/local/bin/consul agent -dev\n")
	m.write("/etc/systemd/system/nomad.service", "[Service]\nEnvironment=CONSUL_HTTP_ADDR=127.0.0.1:8500\nExecStart=/usr/local/bin/nomad agent -config /etc/nomad.d\nKillMode=process\n")
	m.write("/etc/nomad.d/nomad.hcl", nomadConfig)
	install := func(dist string) {
		for i, m := range machines {
			names := []string{"remuda", "remuda-device", "remuda-autoscaler"}
			if i > 0 {
				names = names[:1] // a server of the controller and nothing else
			}
			for _, name := range names {
				debs, err := filepath.Glob(filepath.Join(dist, name+"_*_amd64.deb"))
				require.NoError(t, err)
				require.Len(t, debs, 1)
				m.copyIn(debs[0], "/root/"+name+".deb")
			}
			m.sh(`dpkg --install /root/*.deb && rm /root/*.deb`)
		}
	}
	m.sh(`mkdir -p /opt/nomad/data/plugins /opt/nomad-autoscaler/plugins`) // Nomad's own
	before := m.files()

	install(one)
	installed := m.files()
	for path, want := range map[string]string{
		"/etc/remuda.d":                                     "root:remuda 750",
		"/etc/remuda.d/controller.hcl":                      "root:remuda 640",
		"/etc/remuda.d/gateway.hcl":                         "root:remuda 640",
		"/etc/remuda.d/node.env":                            "root:remuda 640",
		"/usr/bin/remuda":                                   "root:root 755",
		"/opt/nomad/data/plugins/remuda-device":             "root:root 777 /usr/bin/remuda-device",
		"/opt/nomad-autoscaler/plugins/remuda-autoscaler":   "root:root 777 /usr/bin/remuda-autoscaler",
		"/usr/lib/systemd/system/remuda-controller.service": "root:root 644",
		"/usr/share/remuda/jobs/acl/controller.nomad.hcl":   "root:root 644",
		"/usr/share/remuda/jobs/packs/remuda/variables.hcl": "root:root 644",
		"/usr/share/remuda/jobs/monitoring/rules.yml":       "root:root 644",
	} {
		require.Equal(t, want, installed[path], path)
	}
	require.Empty(t, m.sh(`systemd-analyze verify /usr/lib/systemd/system/remuda-*.service 2>&1`))
	require.Empty(t, m.sh(`dpkg --verify remuda remuda-device remuda-autoscaler`))
	require.Contains(t, m.sh(`remuda version; remuda-device -version; remuda-autoscaler -version`), "remuda 0.1.1 (commit ")
	require.Contains(t, m.sh(`COMP_LINE='remuda model st' remuda`), "status\n")
	require.Equal(t, strings.Repeat("inactive\n", 4), m.sh(`systemctl is-active `+strings.Join(daemonUnits, " ")+` || true`), "an installation starts nothing")

	m.write("/etc/remuda.d/node.env", "LOCKD_FLAGS=-consul 127.0.0.1:8500\nGMS_FLAGS=-backend host -gpu GPU-00000000-0000-4000-8000-000000000000=80GiB\n")
	m.sh(`systemctl start consul nomad remuda-lockd remuda-gms`)
	for _, m := range machines {
		m.write("/etc/remuda.d/controller.hcl", fmt.Sprintf(controllerConfig, m.host, m.host))
		m.sh(`systemctl start remuda-controller`)
	}
	healthy := func() {
		for _, m := range machines {
			m.within(time.Minute, `curl --silent --fail $REMUDA_ADDR/ready`)
		}
	}
	healthy()
	m.sh(`umask 077; remuda acl bootstrap | sed -n 's/^Secret *= //p' >/root/token`)
	token := strings.TrimSpace(m.sh(`cat /root/token`))
	m.sh(`token=$(remuda acl token create -role gateway -name gateways | sed -n 's/^Secret *= //p')
		sed -i "s|# token   = .*|token = \"$token\"|" /etc/remuda.d/gateway.hcl
		sed -i 's|addresses = .*|addresses = ["http://127.0.0.1:4750", "http://127.0.0.2:4750", "http://127.0.0.3:4750"]|' /etc/remuda.d/gateway.hcl
		systemctl start remuda-gateway`)
	m.within(2*time.Minute, `remuda node list | grep -q ready`)
	m.sh(`timeout 120 remuda model apply /usr/share/remuda/jobs/demo.model.hcl`)
	// A gateway that restarts refuses connections (7), or resets those that it has not accepted yet (56). Everything else
	// is a failure.
	ask := `for i in $(seq 300); do
			code=0
			curl --silent --show-error --fail --max-time 30 127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
				-d '{"model":"demo","max_tokens":20,"messages":[{"role":"user","content":"Hello"}]}' || code=$?
			case $code in 7 | 56) sleep 0.1 ;; *) exit $code ;; esac
		done
		exit $code`
	m.within(time.Minute, ask)
	for unit, user := range map[string]string{"remuda-controller": "remuda", "remuda-gateway": "remuda", "remuda-gms": "root", "remuda-lockd": "root"} {
		require.Equal(t, user+"\n", m.sh(`stat -c %U /proc/$(systemctl show --value -p MainPID `+unit+`)`), unit)
	}

	t.Log("upgrading under load")
	stop := make(chan struct{})
	var load sync.WaitGroup
	answers := make([]int, 4)
	for i := range answers {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if out, err := m.command(ask).CombinedOutput(); err != nil {
					t.Errorf("a request failed during the upgrade: %v: %s", err, out)
					return
				}
				answers[i]++
			}
		})
	}
	install(two)
	m.sh(`systemctl reload remuda-gms`)
	m.sh(`systemctl restart remuda-lockd`)
	for _, m := range machines {
		m.sh(`systemctl restart remuda-controller`)
		healthy()
		require.Contains(t, m.sh(`REMUDA_TOKEN=`+token+` remuda agent info`), "0.1.2")
	}
	m.sh(`systemctl restart remuda-gateway`)
	m.within(time.Minute, ask)
	for _, unit := range daemonUnits {
		m.within(30*time.Second, `cmp /usr/bin/remuda /proc/$(systemctl show --value -p MainPID `+unit+`)/exe`)
	}
	close(stop)
	load.Wait()
	for i, n := range answers {
		require.Positive(t, n, "client %d", i)
	}
	t.Logf("answers of 4 clients during the upgrade: %v", answers)
	for _, m := range machines {
		require.Empty(t, m.sh(`systemctl list-units --failed --no-legend`))
		require.Equal(t, "0\n", m.sh(`systemctl show --value -p NRestarts remuda-controller`))
	}
	require.Empty(t, m.sh(`journalctl --no-pager -u 'remuda-*' | grep -i 'denied\|operation not permitted' || true`), "a protection of a unit is in the daemon's way")

	m.sh(`remuda model stop demo`)
	m.within(time.Minute, `! remuda replica list | grep -q demo`)
	m.sh(`systemctl stop nomad consul`)
	m.sh(`dpkg --remove remuda remuda-device remuda-autoscaler`)
	require.Empty(t, m.sh(`systemctl list-units --all --no-legend 'remuda-*'`))
	m.within(30*time.Second, `! readlink /proc/[0-9]*/exe | grep /remuda`)
	data := []string{"/var/lib/remuda", "/var/log/remuda"}
	left := func() []string {
		var paths []string
		for path := range maps.Keys(m.files()) {
			if _, was := before[path]; !was && !slices.ContainsFunc(append(data, others...), func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }) {
				paths = append(paths, path)
			}
		}
		slices.Sort(paths)
		return paths
	}
	for _, path := range left() {
		require.True(t, path == "/etc/remuda.d" || strings.HasPrefix(path, "/etc/remuda.d/") || strings.HasPrefix(path, "/var/lib/dpkg/info/remuda."), "%s is left after the removal", path)
	}
	require.Contains(t, m.files(), "/var/lib/remuda/controller")
	m.sh(`dpkg --purge remuda remuda-device remuda-autoscaler`)
	require.Empty(t, left(), "left after the purge")
	require.Contains(t, m.files(), "/var/lib/remuda/controller", "data is never removed")
}

// others are where Nomad, Consul, systemd, dpkg and this test write.
var others = []string{"/opt/nomad/data", "/opt/alloc_mounts", "/var/lib/systemd", "/var/log/journal", "/var/tmp", "/var/lib/dpkg/lock", "/root", "/etc/.pwd.lock",
	"/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-", "/opt/nomad/alloc_mounts"}

// controllerConfig is that of one of three servers.
const controllerConfig = `
data_dir         = "/var/lib/remuda/controller"
bootstrap_expect = 3
join             = ["127.0.0.1:4751", "127.0.0.2:4751", "127.0.0.3:4751"]

raft {
  bind   = "%s:4751"
  secret = "fifteen bytes are too few"
}

http {
  bind = "%s:4750"
}

nomad {
  address = "http://127.0.0.1:4646"
}

consul {
  address = "127.0.0.1:8500"
}
`

// nomadConfig is a Nomad as HashiCorp's package sets it up, with a simulated GPU. There is no plugin_dir: the package
// of the plugin links it into the default one.
const nomadConfig = `
data_dir  = "/opt/nomad/data"
bind_addr = "127.0.0.1"

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = true
  bootstrap_expect = 1
}

client {
  enabled           = true
  servers           = ["127.0.0.1"]
  network_interface = "lo"
  options = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean" }
}

plugin "raw_exec" {
  config { enabled = true }
}

plugin "remuda-device" {
  config {
    simulate {
      model = "H100"
      count = 1
    }
  }
}
`
