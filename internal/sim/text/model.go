package text

// State is the model after some text. The zero State is not valid; NewState
// makes one. It is a plain value: a copy goes its own way.
type State struct {
	hash uint64 // FNV-1a over the model's name, a zero byte and the text so far
	last byte   // the last byte of the text; '\n' before any
	// upperWord tells whether the word that the text ends with began with an
	// ASCII capital: such a word has just opened a sentence and cannot end it.
	upperWord bool
	inWord    bool
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211

	// Odds, each one in so many: that a word ends its sentence, that a comma
	// follows it, and that a finished sentence is the answer's last. Answers
	// come out at about 100 tokens on average, with a geometric tail.
	oddsEndSentence = 10
	oddsComma       = 13
	oddsEOS         = 8
)

// NewState is the model called model before any text.
func NewState(model string) State {
	s := State{hash: fnvOffset, last: '\n'}
	s.fold(model)
	s.foldByte(0)
	s.last, s.inWord, s.upperWord = '\n', false, false
	return s
}

// Append returns the state after t was added to the text, whoever wrote it.
func (s State) Append(t string) State {
	s.fold(t)
	return s
}

func (s *State) fold(t string) {
	for i := range len(t) {
		s.foldByte(t[i])
	}
}

func (s *State) foldByte(c byte) {
	s.hash = (s.hash ^ uint64(c)) * fnvPrime
	s.last = c
	switch {
	case !isWordByte(c):
		s.inWord, s.upperWord = false, false
	case !s.inWord:
		s.inWord, s.upperWord = true, 'A' <= c && c <= 'Z'
	}
}

func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c >= 0x80
}

// Next is the token that follows. With eos true the answer ends here and the
// token is empty. Choice is the index among the `n` answers to one request;
// with noEOS the model goes on where it would have stopped.
func (s State) Next(choice int, noEOS bool) (token string, eos bool) {
	x := mix(s.hash ^ uint64(choice)*0x9e3779b97f4a7c15)
	word := int(x % uint64(len(words)))
	x /= uint64(len(words))
	switch s.last {
	case '\n', '\t':
		return bareUpper[word], false
	case ' ':
		return bareLower[word], false
	case '.', '!', '?':
		if x%oddsEOS == 0 && !noEOS {
			return "", true
		}
		return spaceUpper[word], false
	}
	if s.inWord && !s.upperWord {
		if x%oddsEndSentence == 0 {
			x /= oddsEndSentence
			return terminators[x%uint64(len(terminators))], false
		}
		x /= oddsEndSentence
		if x%oddsComma == 0 {
			return ",", false
		}
	}
	return spaceLower[word], false
}

// mix spreads every input bit over the word (MurmurHash3's finalizer): the low
// bits of FNV-1a alone repeat too soon.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
