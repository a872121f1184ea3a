package lock

// What the property test looks at and no owner needs.

// Conns is how many connections the machine remembers.
func (m *Machine) Conns() int { return len(m.conns) + len(m.closed) }

// HolderConn is the holder's connection, 0 for none.
func (m *Machine) HolderConn(name string) ConnID { return m.group(name).conn }

// Pending is the version that the holder's grant waits for, 0 for none.
func (m *Machine) Pending(name string) uint64 { return m.group(name).pending }

// Queue is the waiters' connections, the next one first.
func (m *Machine) Queue(name string) []ConnID {
	var conns []ConnID
	for _, w := range m.group(name).waiters {
		conns = append(conns, w.conn)
	}
	return conns
}

// group is an empty one where the machine has forgotten it.
func (m *Machine) group(name string) *group {
	if g := m.groups[name]; g != nil {
		return g
	}
	return &group{state: Free}
}
