package devcluster

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Ports come from blocks below the kernel's ephemeral range, so that no
// outgoing connection can take one between its choice and its use. Each
// cluster claims a block, and with it the range from which its Nomad takes
// dynamic ports: two Nomads that do not know of each other would otherwise give
// the same port to their tasks.
const (
	firstBlock = 21000
	blockSize  = 200
	blocks     = 50
	// ownPorts of a block are for daemons; the rest is for Nomad's tasks.
	ownPorts = 20
)

// defaultPorts are what users of the tools expect. The other daemons always
// get one of the block's.
var defaultPorts = map[string]int{
	"consul-http": 8500, "consul-grpc": 8502, "consul-server": 8300, "consul-serf": 8301,
	"nomad-http": 4646, "nomad-rpc": 4647, "nomad-serf": 4648,
	"gateway": 8080, "autoscaler": 8090, "autoscaler-metrics": 9836,
	"controller": 4750, "controller-raft": 4751,
}

// portOrder fixes which daemon asks first.
var portOrder = []string{"gateway", "nomad-http", "nomad-rpc", "nomad-serf",
	"nomad-client-http", "nomad-client-rpc", "consul-http", "consul-grpc",
	"consul-server", "consul-serf", "autoscaler", "autoscaler-metrics",
	"controller", "controller-raft"}

// portBlock is a claimed block; closing its listener gives it back.
type portBlock struct {
	base  int
	claim net.Listener
	ports map[string]int
}

// claimPorts claims a block and gives every daemon its default port, or one of
// the block's where the default is taken.
func claimPorts() (*portBlock, error) {
	for i := range blocks {
		base := firstBlock + i*blockSize
		ln, err := net.Listen("tcp", loopback(base))
		if err != nil {
			continue
		}
		b := &portBlock{base: base, claim: ln, ports: map[string]int{}}
		if err := b.choose(); err != nil {
			_ = ln.Close()
			return nil, err
		}
		return b, nil
	}
	return nil, fmt.Errorf("no free block of ports between %d and %d: are %d clusters running?",
		firstBlock, firstBlock+blocks*blockSize, blocks)
}

func (b *portBlock) choose() error {
	next := b.base + 1
	for _, name := range portOrder {
		if usual, ok := defaultPorts[name]; ok && portFree(usual) {
			b.ports[name] = usual
			continue
		}
		for ; next < b.base+ownPorts && !portFree(next); next++ {
		}
		if next == b.base+ownPorts {
			return errors.New("no free port for " + name + " in the block at " + strconv.Itoa(b.base))
		}
		b.ports[name] = next
		next++
	}
	return nil
}

// dynamic is the range that Nomad may give to tasks.
func (b *portBlock) dynamic() (low, high int) { return b.base + ownPorts, b.base + blockSize - 1 }

// seed varies the simulated GPUs of clusters that run at the same time: what is on a GPU
// is found by its UUID. The first cluster has none, so that its GPUs are those that the
// job files and the documentation name.
func (b *portBlock) seed() string {
	if b.base == firstBlock {
		return ""
	}
	return "dev-" + strconv.Itoa(b.base)
}

func (b *portBlock) addr(name string) string { return loopback(b.ports[name]) }

func (b *portBlock) Close() error { return b.claim.Close() }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portFree tells whether TCP and UDP (serf uses both) can be bound.
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
