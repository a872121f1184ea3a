package devcluster

import (
	"fmt"
	"net"
	"strconv"
)

// Ports come from blocks below the kernel's ephemeral range, so that no outgoing
// connection can take one between its choice and its use. Each cluster claims a block for
// as long as it runs, and with it the range from which its Nomad takes dynamic ports: two
// Nomads that do not know of each other would otherwise give the same port to their tasks.
const (
	firstBlock = 21000
	blockSize  = 400
	blocks     = 25
	// ownPorts of a block are for daemons; the rest is for Nomad's tasks.
	ownPorts = 60
)

// defaultPorts are what users of the tools expect. Only the cluster that holds the first
// block takes them: no two clusters compete for one. The other daemons always get a port
// of the block.
var defaultPorts = map[string]int{
	"consul-http": 8500, "consul-grpc": 8502, "consul-server": 8300, "consul-serf": 8301,
	"nomad-http": 4646, "nomad-rpc": 4647, "nomad-serf": 4648,
	"gateway": 8080, "gateway-operators": 4752, "autoscaler": 8090, "autoscaler-metrics": 9836, "device-metrics": 9835,
	"controller": 4750, "controller-raft": 4751,
}

// portBlock is a claimed block; closing its listener gives it back.
type portBlock struct {
	base  int
	claim net.Listener
	ports map[string]int
}

// claimPorts claims a block and gives a port to each name: its default port in the first
// block, or one of the block's where the default is taken or there is none.
func claimPorts(names []string) (*portBlock, error) {
	for i := range blocks {
		base := firstBlock + i*blockSize
		ln, err := net.Listen("tcp", loopback(base))
		if err != nil {
			continue
		}
		b := &portBlock{base: base, claim: ln, ports: map[string]int{}}
		if err := b.choose(names); err != nil {
			_ = ln.Close()
			return nil, err
		}
		return b, nil
	}
	return nil, fmt.Errorf("no free block of ports between %d and %d: are %d clusters running?",
		firstBlock, firstBlock+blocks*blockSize, blocks)
}

func (b *portBlock) choose(names []string) error {
	next := b.base + 1
	for _, name := range names {
		if usual, ok := defaultPorts[name]; ok && b.base == firstBlock && portFree(usual) {
			b.ports[name] = usual
			continue
		}
		for ; next < b.base+ownPorts && !portFree(next); next++ {
		}
		if next == b.base+ownPorts {
			return fmt.Errorf("no free port for %s between %d and %d", name, b.base, next)
		}
		b.ports[name] = next
		next++
	}
	return nil
}

// dynamic is the range of ports that one of several Nomad clients may give to its tasks.
func (b *portBlock) dynamic(node, nodes int) (low, high int) {
	each := (blockSize - ownPorts) / nodes
	low = b.base + ownPorts + node*each
	return low, low + each - 1
}

// seed varies the simulated GPUs of clusters that run at the same time, and of the nodes of
// a cluster: what is on a GPU is found by its UUID. The first node of the first cluster has
// none, so that its GPUs are those that the job files and the documentation name.
func (b *portBlock) seed(node int) string {
	switch {
	case node > 0:
		return fmt.Sprintf("dev-%d-%d", b.base, node+1)
	case b.base == firstBlock:
		return ""
	default:
		return "dev-" + strconv.Itoa(b.base)
	}
}

func (b *portBlock) addr(name string) string { return loopback(b.ports[name]) }

func (b *portBlock) url(name string) string { return "http://" + b.addr(name) }

func (b *portBlock) Close() error { return b.claim.Close() }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portFree tries to bind a port for TCP and UDP (serf uses both).
func portFree(port int) bool {
	tcp, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", loopback(port))
	if err != nil {
		return false
	}
	_ = udp.Close()
	return true
}
