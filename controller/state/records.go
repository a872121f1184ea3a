package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// DecisionLimit is how many decisions are kept; the oldest make room.
const DecisionLimit = 4096

// record adds decisions. The state gives them their IDs.
func (t *txn) record(decisions []Decision) *Error {
	if len(decisions) == 0 {
		return nil
	}
	var last, oldest uint64
	if raw, err := t.Last(string(TableDecisions), byID); err != nil {
		t.fail(err)
	} else if d, ok := raw.(*Decision); ok {
		last = d.ID
		oldest = first[Decision](t.Txn, TableDecisions, byID).ID
	}
	for i := range decisions {
		d := decisions[i]
		errs := []error{checkTime("time", &d.Time), checkName("kind", d.Kind)}
		if strings.ContainsRune(d.Model, 0) || strings.ContainsRune(d.Replica, 0) {
			errs = append(errs, fmt.Errorf("model %q or replica %q contains a NUL byte", d.Model, d.Replica))
		}
		if err := invalid(d.Kind, errs...); err != nil {
			return err
		}
		last++
		d.ID = last
		t.put(TableDecisions, &d)
		if oldest == 0 {
			oldest = last
		}
	}
	for ; last-oldest >= DecisionLimit; oldest++ {
		if d := first[Decision](t.Txn, TableDecisions, byID, oldest); d != nil {
			t.remove(TableDecisions, d)
		}
	}
	return nil
}

// Decided is a command together with the decisions that it carries out, so that
// neither is there without the other. Where the command changes nothing, or is
// rejected, there is nothing to record.
type Decided struct {
	// Of is the type of Command, which is the command as JSON.
	Of        Type
	Command   json.RawMessage
	Decisions []Decision
	level     int
}

// Decide returns c together with the decisions that it carries out, or what is wrong with c
// itself.
func Decide(c Command, decisions ...Decision) (*Decided, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command %d: %w", c.Type(), err)
	}
	return &Decided{Of: c.Type(), Command: body, Decisions: decisions, level: Level(c)}, nil
}

// Level is that of the command; see Level.
func (c *Decided) Level() int { return max(c.level, 1) }

// Type implements Command.
func (*Decided) Type() Type { return TypeDecided }

func (c *Decided) apply(t *txn) *Error {
	if c.Of == TypeDecided {
		return badRequest("", "a decided command contains another decided command")
	}
	inner, err := decodeBody(c.Of, c.Command)
	if err != nil {
		return err
	}
	if err := inner.apply(t); err != nil || !t.changed() {
		return err
	}
	return t.record(c.Decisions)
}

// SetSwitch sets a switch, or takes it away. Name and value of a request are checked with
// CheckSwitch before; here any value is applied.
type SetSwitch struct {
	Name, Value string
	// Delete takes it away; a switch that is not set stays so.
	Delete bool
	// ModifyIndex is the switch's as the caller knows it, 0: it is not set; nil: any.
	ModifyIndex *uint64
}

// Type implements Command.
func (*SetSwitch) Type() Type { return TypeSetSwitch }

func (c *SetSwitch) apply(t *txn) *Error {
	if err := invalid(c.Name, checkName("switch", c.Name)); err != nil {
		return err
	}
	old := first[Switch](t.Txn, TableSwitches, byID, c.Name)
	var have uint64
	if old != nil {
		have = old.ModifyIndex
	}
	if err := checkIndexIf("switch", c.Name, have, c.ModifyIndex); err != nil {
		return err
	}
	switch {
	case c.Delete && old != nil:
		t.remove(TableSwitches, old)
	case !c.Delete && (old == nil || old.Value != c.Value):
		t.put(TableSwitches, &Switch{Name: c.Name, Value: c.Value, ModifyIndex: t.index})
	}
	return nil
}

// HashSecret is what the state keeps of a token's secret. Secrets are long and
// random, so that a plain SHA-256 cannot be turned back.
func HashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// UpsertToken creates or changes a token.
type UpsertToken struct {
	Token Token
	// Bootstrap creates the first token, an operator's. It is rejected once there is
	// an operator's token, so that only one caller can be first.
	Bootstrap bool
	// ModifyIndex is the token's as the caller knows it, 0: it does not exist.
	ModifyIndex uint64
}

// Type implements Command.
func (*UpsertToken) Type() Type { return TypeUpsertToken }

func (c *UpsertToken) apply(t *txn) *Error {
	k := c.Token
	if err := k.validate(); err != nil {
		return err
	}
	if c.Bootstrap {
		if k.Role != RoleOperator {
			return badRequest(k.Accessor, "role of the first token is %q: must be %s", k.Role, RoleOperator)
		}
		if operators(t) > 0 {
			return conflict(k.Accessor, "an operator token already exists")
		}
	}
	old := first[Token](t.Txn, TableTokens, byID, k.Accessor)
	var have uint64
	if old != nil {
		have = old.ModifyIndex
	}
	if err := checkIndex("token", k.Accessor, have, c.ModifyIndex); err != nil {
		return err
	}
	if other := first[Token](t.Txn, TableTokens, byHash, k.Hash); other != nil && other.Accessor != k.Accessor {
		return conflict(k.Accessor, "another token has the same secret")
	}
	k.CreateIndex, k.ModifyIndex = t.index, t.index
	if old != nil {
		k.CreateIndex = old.CreateIndex
	}
	t.put(TableTokens, &k)
	return nil
}

// operators counts the operators' tokens.
func operators(t *txn) int {
	n := 0
	tokens, _ := each[Token](t.Txn, TableTokens, byID)
	for _, k := range tokens {
		if k.Role == RoleOperator {
			n++
		}
	}
	return n
}

func (c *UpsertToken) check() *Error {
	switch k := c.Token; k.Role {
	case RoleOperator, RoleGateway, RoleAutoscaler, RoleReadOnly:
		return nil
	default:
		return badRequest(k.Accessor, "role is %q: must be operator, gateway, autoscaler or read-only", k.Role)
	}
}

func (k *Token) validate() *Error {
	errs := []error{checkName("accessor", k.Accessor), checkTime("created", &k.CreatedAt)}
	if b, err := hex.DecodeString(k.Hash); err != nil || len(b) != sha256.Size || strings.ToLower(k.Hash) != k.Hash {
		errs = append(errs, fmt.Errorf("hash is not a SHA-256 in lower-case hexadecimal"))
	}
	return invalid(k.Accessor, errs...)
}

// DeleteToken deletes a token.
type DeleteToken struct {
	Accessor string
	// KeepOperator rejects the deletion of the last operator's token: without one, any client could
	// bootstrap a new one.
	KeepOperator bool `json:",omitempty"`
}

// Type implements Command.
func (*DeleteToken) Type() Type { return TypeDeleteToken }

func (c *DeleteToken) apply(t *txn) *Error {
	k := first[Token](t.Txn, TableTokens, byID, c.Accessor)
	if k == nil {
		return notFound(c.Accessor, "token %q does not exist", c.Accessor)
	}
	if c.KeepOperator && k.Role == RoleOperator && operators(t) == 1 {
		return conflict(c.Accessor, "token %q is the only operator token: create another one first", c.Accessor)
	}
	t.remove(TableTokens, k)
	return nil
}
