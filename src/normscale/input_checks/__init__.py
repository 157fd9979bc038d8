"""What is surely, or very probably, wrong with the outputs somebody gives: pure functions that answer with a sentence.

Every check looks at rows alone. Commands, the server and the export call them; what a check finds is either refused
or said, and that is the caller's decision.
"""
