drop table bookshelf.cards, bookshelf.topics;
